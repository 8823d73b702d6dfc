"""`accelerate config`: questions, the default file, and the rewriting of older files."""

from __future__ import annotations

import importlib.util
import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from accelerate.commands.config import cluster, get_config_parser, sagemaker
from accelerate.commands.config import config as command
from accelerate.commands.config.cluster import get_cluster_input
from accelerate.commands.config.config_args import ClusterConfig, SageMakerConfig, load_config_from_file
from accelerate.commands.config.default import write_basic_config
from accelerate.config import questionnaire
from accelerate.config.option import Option
from accelerate.launchers import hardware
from accelerate.launchers.hardware import Hardware


@pytest.fixture(autouse=True)
def home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A home without a config file, on a machine without accelerators."""
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    on(monkeypatch, Hardware())
    return tmp_path


def on(monkeypatch: pytest.MonkeyPatch, machine: Hardware) -> None:
    """Make this machine one with other hardware."""
    monkeypatch.setattr(hardware, "find_hardware", lambda environ: machine)


def run(*words: str) -> None:
    """Run `accelerate config` with these words."""
    args = get_config_parser().parse_args(list(words))
    args.func(args)


@pytest.mark.parametrize(
    ("machine", "label", "processes", "use_cpu"),
    [
        (Hardware(), "NO", 1, True),
        (Hardware("cuda", 1), "NO", 1, False),
        (Hardware("cuda", 4), "MULTI_GPU", 4, False),
        (Hardware("npu", 8), "MULTI_NPU", 8, False),
        (Hardware("mps", 1), "NO", 1, False),
    ],
)
def test_the_default_file_fits_the_machine(
    monkeypatch: pytest.MonkeyPatch, home: Path, machine: Hardware, label: str, processes: int, use_cpu: bool
) -> None:
    on(monkeypatch, machine)
    path = write_basic_config("bf16", str(home / "sub" / "c.yaml"))
    assert path == home / "sub" / "c.yaml"
    content = yaml.safe_load(path.read_text())
    assert (content["distributed_type"], content["num_processes"]) == (label, processes)
    assert (content["use_cpu"], content["mixed_precision"]) == (use_cpu, "bf16")
    assert load_config_from_file(str(path)).to_dict() == content


def test_the_default_file_is_text_of_its_kind(home: Path) -> None:
    write_basic_config(save_location=str(home / "c.json"))
    assert json.loads((home / "c.json").read_text())["num_processes"] == 1
    write_basic_config(save_location=str(home / "c.yaml"))
    assert "num_processes: 1\n" in (home / "c.yaml").read_text()


def test_a_file_that_exists_is_kept(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (home / "c.yaml").write_text("mine")
    assert write_basic_config(save_location=str(home / "c.yaml")) is False
    run("default", "--config_file", str(home / "c.yaml"))
    assert (home / "c.yaml").read_text() == "mine"
    assert "as it is" in capsys.readouterr().out


def test_an_unknown_precision_is_refused(home: Path) -> None:
    with pytest.raises(ValueError, match="fp12"):
        write_basic_config("fp12", str(home / "c.yaml"))


def test_the_default_command_writes_where_it_says(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run("default", "--config-file", str(home / "c.yaml"), "--mixed-precision", "fp16")
    assert capsys.readouterr().out == f"Wrote the configuration to {home / 'c.yaml'}\n"
    assert load_config_from_file(str(home / "c.yaml")).mixed_precision == "fp16"


def test_update_rewrites_in_todays_words(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (home / "c.yaml").write_text(
        "{distributed_type: MULTI_GPU, fp16: true, num_processes: 4, dynamo_backend: INDUCTOR}"
    )
    run("update", "--config_file", str(home / "c.yaml"))
    content = yaml.safe_load((home / "c.yaml").read_text())
    assert (content["mixed_precision"], content["num_processes"]) == ("fp16", 4)
    assert "fp16" not in content
    assert content["dynamo_config"]["dynamo_backend"].upper() == "INDUCTOR"
    assert capsys.readouterr().out == f"Rewrote {home / 'c.yaml'}\n"


def test_update_does_not_warn_of_what_it_mends(home: Path, recwarn: pytest.WarningsRecorder) -> None:
    section = "{fsdp_backward_prefetch_policy: BACKWARD_PRE}"
    (home / "c.yaml").write_text(f"{{distributed_type: FSDP, num_processes: 2, fsdp_config: {section}}}")
    run("update", "--config_file", str(home / "c.yaml"))
    assert yaml.safe_load((home / "c.yaml").read_text())["fsdp_config"] == {"fsdp_backward_prefetch": "BACKWARD_PRE"}
    assert [str(one.message) for one in recwarn] == []


def test_update_needs_a_file(home: Path) -> None:
    with pytest.raises(ValueError, match=r"nowhere\.yaml"):
        run("update", "--config_file", "nowhere.yaml")


def test_questions_need_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("1\n"))
    with pytest.raises(ValueError, match="accelerate config default"):
        run()


class Person:
    """Answers what is in `answers`, by dest, and takes the suggestion otherwise; remembers what was asked."""

    def __init__(self, **answers: Any) -> None:
        self.answers = answers
        self.asked: dict[str, Any] = {}

    def __call__(self, declared: Option, suggestion: Any, offered: Any) -> Any:
        self.asked[declared.dest] = offered
        return self.answers.get(declared.dest, suggestion)


def answered_by(monkeypatch: pytest.MonkeyPatch, person: Person) -> None:
    """Have a person sit at the terminal."""
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    for module in (questionnaire, cluster, sagemaker):
        monkeypatch.setattr(module, "on_terminal", person)


def test_answers_become_a_config() -> None:
    person = Person(distributed_type="MULTI_CPU", num_processes="2", mixed_precision="bf16")
    config = get_cluster_input(person)
    assert (config.distributed_type.value, config.num_processes, config.mixed_precision) == ("MULTI_CPU", 2, "bf16")
    assert "compute_environment" not in person.asked, "there is one answer"
    assert "main_process_ip" not in person.asked, "there is one machine"
    assert person.asked["distributed_type"] == ["NO", "MULTI_CPU", "FSDP"]


def test_several_machines_are_asked_about(monkeypatch: pytest.MonkeyPatch) -> None:
    on(monkeypatch, Hardware("cuda", 4))
    person = Person(distributed_type="MULTI_GPU", num_machines="2", machine_rank="1", main_process_ip="host0")
    config = get_cluster_input(person)
    assert (config.num_machines, config.machine_rank, config.main_process_ip) == (2, 1, "host0")
    assert person.asked["distributed_type"] == ["NO", "MULTI_CPU", "MULTI_GPU", "FSDP"]


def test_what_is_installed_is_offered_and_asked_about(monkeypatch: pytest.MonkeyPatch) -> None:
    on(monkeypatch, Hardware("cuda", 4))
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: object() if name in cluster.BY_PACKAGE else find(name, *rest)
    )
    person = Person(distributed_type="DEEPSPEED", num_machines="2", zero_stage="3", deepspeed_hostfile="hosts")
    config = get_cluster_input(person)
    assert person.asked["distributed_type"] == ["NO", "MULTI_CPU", "MULTI_GPU", "FSDP", "DEEPSPEED", "XLA"]
    assert config.deepspeed_config == {
        "deepspeed_hostfile": "hosts",
        "deepspeed_multinode_launcher": "pdsh",
        "offload_optimizer_device": "none",
        "offload_param_device": "none",
        "zero3_init_flag": True,
        "zero3_save_16bit_model": True,
        "zero_stage": 3,
    }
    assert {"offload_param_nvme_path", "fsdp_version"}.isdisjoint(person.asked)
    person = Person(distributed_type="DEEPSPEED", deepspeed_config_file="ds.json")
    assert get_cluster_input(person).deepspeed_config == {"deepspeed_config_file": "ds.json"}


def test_the_present_file_gives_the_suggestions(home: Path) -> None:
    (home / "accelerate").mkdir()
    (home / "accelerate" / "default_config.yaml").write_text("{distributed_type: MULTI_CPU, num_processes: 3}")
    config = get_cluster_input(Person())
    assert (config.distributed_type.value, config.num_processes) == ("MULTI_CPU", 3)


def test_the_questionnaire_writes_the_file(
    monkeypatch: pytest.MonkeyPatch, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    answered_by(monkeypatch, Person(distributed_type="NO", mixed_precision="bf16"))
    run("--config_file", str(home / "c.json"))
    assert json.loads((home / "c.json").read_text())["mixed_precision"] == "bf16"
    out = capsys.readouterr().out
    assert out.startswith(f"\n{home / 'c.json'}:\n\n{{")
    assert out.endswith(f"Wrote the configuration to {home / 'c.json'}\n")


@pytest.mark.parametrize(("answer", "precision"), [(False, "fp16"), (True, "bf16")])
def test_a_file_that_says_something_else_is_replaced_if_a_person_agrees(
    monkeypatch: pytest.MonkeyPatch, home: Path, capsys: pytest.CaptureFixture[str], answer: bool, precision: str
) -> None:
    path = home / "c.json"
    path.write_text('{"distributed_type": "NO", "mixed_precision": "fp16"}')
    answered_by(monkeypatch, Person(distributed_type="NO", mixed_precision="bf16"))
    monkeypatch.setattr(command, "agrees", lambda question: answer)
    run("--config_file", str(path))
    assert json.loads(path.read_text())["mixed_precision"] == precision
    assert ("Left" in capsys.readouterr().out) is not answer
    assert [each.name for each in home.iterdir()] == ["c.json"]


def test_a_machine_without_accelerators_is_not_asked_about_them(monkeypatch: pytest.MonkeyPatch) -> None:
    person = Person(distributed_type="NO")
    get_cluster_input(person)
    assert not {"cpu", "gpu_ids", "enable_cpu_affinity"} & set(person.asked)
    on(monkeypatch, Hardware("cuda", 4))
    get_cluster_input(person)
    assert {"cpu", "gpu_ids", "enable_cpu_affinity"} <= set(person.asked)


def test_config_files_are_of_two_kinds(home: Path) -> None:
    (home / "a.yaml").write_text("{distributed_type: 'NO'}")
    (home / "b.yaml").write_text(
        "{compute_environment: AMAZON_SAGEMAKER, distributed_type: 'NO', ec2_instance_type: a, iam_role_name: b}"
    )
    assert isinstance(load_config_from_file(str(home / "a.yaml")), ClusterConfig)
    assert isinstance(load_config_from_file(str(home / "b.yaml")), SageMakerConfig)


JOB = {"compute_environment": "AMAZON_SAGEMAKER", "distributed_type": "DATA_PARALLEL", "iam_role_name": "role"}


def test_jobs_on_sagemaker_are_asked_about(
    monkeypatch: pytest.MonkeyPatch, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    person = Person(**JOB, num_machines="2", ec2_instance_type="ml.p4d.24xlarge", mixed_precision="bf16")
    answered_by(monkeypatch, person)
    looked: list[str] = []
    monkeypatch.setattr(sagemaker, "_get_iam_role_arn", looked.append)
    run("--config_file", str(home / "c.yaml"))
    config = load_config_from_file(str(home / "c.yaml"))
    assert isinstance(config, SageMakerConfig)
    assert (config.ec2_instance_type, config.num_machines, config.profile) == ("ml.p4d.24xlarge", 2, None)
    assert (config.distributed_type.value, config.mixed_precision) == ("DATA_PARALLEL", "bf16")
    assert not {"cpu", "enable_cpu_affinity", "num_processes", "main_process_ip"} & set(person.asked)
    assert looked == ["role"]


def test_the_present_file_gives_the_suggestions_for_jobs(monkeypatch: pytest.MonkeyPatch, home: Path) -> None:
    (home / "accelerate").mkdir()
    facts = {**JOB, "ec2_instance_type": "ml.g5.xlarge", "image_uri": "image:1", "additional_args": {"max_run": 60}}
    (home / "accelerate" / "default_config.yaml").write_text(
        json.dumps({**facts, "dynamo_config": {"dynamo_backend": "EAGER"}})
    )
    person = Person()
    answered_by(monkeypatch, person)
    assert command.choose_environment().value == "AMAZON_SAGEMAKER"
    config = sagemaker.get_sagemaker_input()
    assert (config.ec2_instance_type, config.image_uri) == ("ml.g5.xlarge", "image:1")
    assert config.additional_args == {"max_run": 60}
    assert config.dynamo_config is not None
    assert config.dynamo_config["dynamo_backend"] == "EAGER"
    assert not {"pytorch_version", "transformers_version", "py_version"} & set(person.asked), "the image has them"


class NoSuchEntityException(Exception):
    """As boto3 calls it."""


@pytest.mark.parametrize(
    ("error", "answer", "made", "said"),
    [
        (None, True, [], ""),
        (NoSuchEntityException(), True, ["role"], "Created the IAM role role"),
        (NoSuchEntityException(), False, [], ""),
        (RuntimeError("no credentials"), True, [], "Nobody looked whether there is an IAM role role: no credentials"),
    ],
)
def test_a_role_is_created_if_a_person_agrees(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], error: Any, answer: bool, made: Any, said: str
) -> None:
    def look(name: str) -> str:
        if error is not None:
            raise error
        return "arn"

    created: list[str] = []
    monkeypatch.setattr(sagemaker, "_get_iam_role_arn", look)
    monkeypatch.setattr(sagemaker, "_create_iam_role_for_sagemaker", created.append)
    config = SageMakerConfig.from_dict({**JOB, "ec2_instance_type": "a"})
    sagemaker.ensure_role(config, lambda question: answer)
    assert created == made
    assert capsys.readouterr().out.strip() == said


def test_without_boto3_nobody_looks_for_a_role(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "boto3", None)
    sagemaker.ensure_role(SageMakerConfig.from_dict({**JOB, "ec2_instance_type": "a"}), lambda question: True)
    assert "boto3 isn't installed" in capsys.readouterr().out
    role = {**JOB, "iam_role_name": "arn:aws:iam::1:role/r", "ec2_instance_type": "a"}
    sagemaker.ensure_role(SageMakerConfig.from_dict(role), lambda question: True)
    assert capsys.readouterr().out == ""
