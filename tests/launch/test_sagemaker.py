"""Jobs on SageMaker: what is asked for, and how each version of the SDK is told; the SDKs themselves are played."""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import sys
import types
from pathlib import Path
from typing import Any

import pytest

from accelerate.commands.launch import launch_command_parser
from accelerate.config.sagemaker import SageMakerConfig
from accelerate.launchers import sagemaker_sdk
from accelerate.launchers.sagemaker import SageMakerLauncher, prepare_sagemager_args_inputs, sagemaker_launcher
from accelerate.launchers.sagemaker_job import hyperparameters, typed
from accelerate.launchers.sagemaker_trainer import runner, trainer_settings
from tests.launch.plans import SCRIPT, plan_of, settings_of

JOB = "compute_environment: AMAZON_SAGEMAKER, ec2_instance_type: ml.p4d.24xlarge, iam_role_name: role"
ALONE = f"{{{JOB}, distributed_type: 'NO'}}"
DATA = f"{{{JOB}, distributed_type: DATA_PARALLEL, num_machines: 2, mixed_precision: bf16, profile: me}}"
MODEL = f"{{{JOB}, distributed_type: MODEL_PARALLEL, image_uri: image:1}}"
ENV = {"ACCELERATE_USE_SAGEMAKER": "true", "ACCELERATE_SAGEMAKER_DISTRIBUTED_TYPE": "NO"}
#: What is asked for when nothing but the three required keys is said.
PLAIN: dict[str, Any] = {
    "image_uri": None,
    "entry_point": "plans.py",
    "source_dir": str(Path(SCRIPT).parent),
    "role": "role",
    "transformers_version": "4.17.0",
    "pytorch_version": "1.10.2",
    "py_version": "py38",
    "base_job_name": "accelerate-sagemaker-1",
    "instance_count": 1,
    "instance_type": "ml.p4d.24xlarge",
    "debugger_hook_config": False,
    "distribution": None,
    "hyperparameters": {},
    "environment": ENV,
    "metric_definitions": None,
    "inputs": None,
}


def test_what_is_asked_for_when_little_is_said() -> None:
    plan = plan_of("SCRIPT", ALONE)
    assert (plan.launcher, plan.request, plan.env) == ("sagemaker", PLAIN, {"AWS_DEFAULT_REGION": "us-east-1"})


def test_data_parallel() -> None:
    plan = plan_of("--num_machines 4 --dynamo_backend eager SCRIPT --lr 1e-3 --n 3 --on True", DATA)
    assert plan.request == {
        **PLAIN,
        "instance_count": 4,
        "distribution": {"smdistributed": {"dataparallel": {"enabled": True}}},
        "hyperparameters": {"lr": 0.001, "n": 3, "on": True},
        "environment": {
            **ENV,
            "ACCELERATE_SAGEMAKER_DISTRIBUTED_TYPE": "DATA_PARALLEL",
            "ACCELERATE_MIXED_PRECISION": "bf16",
            "ACCELERATE_DYNAMO_BACKEND": "eager",
        },
    }
    assert plan.env == {"AWS_DEFAULT_REGION": "us-east-1", "AWS_PROFILE": "me"}


def test_model_parallel() -> None:
    asked = plan_of("SCRIPT", MODEL).request
    assert asked["image_uri"] == "image:1"
    assert asked["distribution"] == {
        "smdistributed": {"modelparallel": {"enabled": True, "parameters": {}}},
        "mpi": {"enabled": True},
    }


def test_further_arguments_of_the_estimator_win_and_dictionaries_are_merged() -> None:
    more = "{max_run: 60, environment: {A: '1'}, hyperparameters: {lr: 2}, instance_count: 9}"
    asked = plan_of("SCRIPT --n 1", f"{{{JOB}, distributed_type: 'NO', additional_args: {more}}}").request
    expected = {"max_run": 60, "environment": {**ENV, "A": "1"}, "hyperparameters": {"n": 1, "lr": 2}}
    assert asked == {**PLAIN, **expected, "instance_count": 9}


def test_tables_of_inputs_and_metrics(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("in.tsv").write_text("channel\tlocation\ntrain\ts3://b/train\n\ntest\ts3://b/test\n")
    Path("out.tsv").write_text("name\tpattern\nloss\tloss = ([0-9.]+)\n")
    files = "sagemaker_inputs_file: in.tsv, sagemaker_metrics_file: out.tsv"
    asked = plan_of("SCRIPT", f"{{{JOB}, distributed_type: 'NO', {files}}}").request
    assert asked["inputs"] == {"train": "s3://b/train", "test": "s3://b/test"}
    assert asked["metric_definitions"] == [{"Name": "loss", "Regex": "loss = ([0-9.]+)"}]
    Path("in.tsv").write_text("channel\tlocation\ntrain s3://b/train\n")
    with pytest.raises(ValueError, match=r"line 2 of in.tsv: train s3://b/train(.|\n)*1 column(.|\n)*one tab"):
        plan_of("SCRIPT", f"{{{JOB}, distributed_type: 'NO', {files}}}")
    Path("in.tsv").unlink()
    with pytest.raises(FileNotFoundError, match=r"`sagemaker_inputs_file: in.tsv` in the config file"):
        plan_of("SCRIPT", f"{{{JOB}, distributed_type: 'NO', {files}}}")


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("--lr 1e-3 --n 3 --flag True --name x", {"lr": 0.001, "n": 3, "flag": True, "name": "x"}),
        ("--lr=1 --x -1 --y=a=b --z -1e-3", {"lr": 1, "x": -1, "y": "a=b", "z": -0.001}),
        ("-n 3 --learning-rate 2.5", {"n": 3, "learning-rate": 2.5}),
        ("--a [1,2] --b {} --c None --d true", {"a": "[1,2]", "b": "{}", "c": "None", "d": "true"}),
        ("", {}),
    ],
)
def test_arguments_become_hyperparameters(words: str, found: dict[str, Any]) -> None:
    made = hyperparameters(words.split())
    assert made == found
    assert [type(value) for value in made.values()] == [type(value) for value in found.values()]


@pytest.mark.parametrize("text", ["1.10", "007", "1_000", "nan", "inf", "1e999", "1_0e1", ".5", "+1", "", "be"])
def test_text_that_a_number_would_change_stays_text(text: str) -> None:
    assert typed(text) == text


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--flag", "argument --flag of the script(.|\n)*it has no value(.|\n)*`--flag True`"),
        ("--flag --lr 1", "argument --flag of the script(.|\n)*no value"),
        ("data --lr 1", "argument data of the script(.|\n)*no name"),
        ("--sizes 1 2", "argument 2 of the script(.|\n)*no name"),
        ("--x 1 --x 2", "argument --x of the script(.|\n)*given twice"),
    ],
)
def test_arguments_that_can_not_be_hyperparameters(words: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        plan_of(f"SCRIPT {words}", ALONE)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("-m tests", "--module and `compute_environment: AMAZON_SAGEMAKER` in c.yaml"),
        ("--submit slurm SCRIPT", "--submit slurm and `compute_environment: AMAZON_SAGEMAKER`"),
        ("--launcher ray SCRIPT", "--launcher ray and"),
        (f"{Path(SCRIPT).parents[2] / 'README.md'}", "a file whose name ends in .py"),
        ("--aws_access_key_id a SCRIPT", "--aws_access_key_id alone(.|\n)*a profile"),
        ("--aws_secret_access_key a SCRIPT", "--aws_secret_access_key alone"),
    ],
)
def test_what_contradicts_a_job(line: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        plan_of(line, ALONE)


def test_credentials_that_are_given_go_before_the_profile_and_are_hidden() -> None:
    line = "--aws_access_key_id AKIA --aws_secret_access_key s3cret SCRIPT --api_key abc"
    plan = plan_of(line, DATA)
    assert plan.env["AWS_ACCESS_KEY_ID"] == "AKIA"
    assert plan.env["AWS_SECRET_ACCESS_KEY"] == "s3cret"
    assert "AWS_PROFILE" not in plan.env
    shown = f"{plan}\n{settings_of(line, DATA)}"
    assert not [secret for secret in ("AKIA", "s3cret", "abc") if secret in shown]
    assert "  distribution:\n    smdistributed:\n      dataparallel:\n        enabled: True\n" in shown
    assert "image_uri" not in shown


@pytest.mark.parametrize(
    ("line", "config", "said"),
    [
        ("--num_processes 8 SCRIPT", ALONE, ["--num_processes 8 has no effect: SageMaker starts the processes"]),
        ("--num_machines 2 SCRIPT", ALONE, ["each machine runs the script by itself"]),
        ("SCRIPT", DATA, []),
        ("--aws_access_key_id a SCRIPT", "", ["--aws_access_key_id *** has no effect: the config file isn't one"]),
    ],
)
def test_what_changes_nothing_is_said(line: str, config: str, said: list[str]) -> None:
    from accelerate.launchers.registry import select

    settings = settings_of(line, config)
    told = select(settings).ignored(settings)
    assert len(told) == len(said)
    assert [part for part, whole in zip(said, told, strict=True) if part not in whole] == []


def test_the_trainer_is_told_the_same(tmp_path: Path) -> None:
    (tmp_path / "requirements.txt").write_text("datasets\n")
    (tmp_path / "train.py").write_text("")
    more = (
        "additional_args: {volume_size: 9, use_spot_instances: true, max_wait: 7, subnets: [a], output_path: s3://b/o, "
        "checkpoint_s3_uri: s3://b/c, input_mode: FastFile, tags: [{Key: a, Value: b}]}"
    )
    plan = plan_of(f"{tmp_path}/train.py --lr 1", f"{{{JOB}, distributed_type: 'NO', image_uri: i, {more}}}")
    asked = {name: value for name, value in plan.request.items() if name != "inputs"}
    assert trainer_settings(asked) == {
        "training_image": "i",
        "role": "role",
        "base_job_name": "accelerate-sagemaker-1",
        "environment": ENV,
        "hyperparameters": {"lr": 1},
        "training_input_mode": "FastFile",
        "source_code": {
            "entry_script": "train.py", "source_dir": str(tmp_path), "requirements": "requirements.txt"
        },
        "compute": {
            "instance_type": "ml.p4d.24xlarge", "instance_count": 1, "volume_size_in_gb": 9,
            "enable_managed_spot_training": True,
        },
        "stopping_condition": {"max_runtime_in_seconds": 86400, "max_wait_time_in_seconds": 7},
        "networking": {"subnets": ["a"]},
        "output_data_config": {"s3_output_path": "s3://b/o"},
        "checkpoint_config": {"s3_uri": "s3://b/c"},
    }  # fmt: skip


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"volume_sise": 3}, "`additional_args` with `volume_sise`(.|\n)*Did you mean 'volume_size'(.|\n)*sagemaker<3"),
        ({"debugger_hook_config": {"a": 1}}, "`debugger_hook_config`"),
        ({"hyperparameters": {"n": 3}}, "argument -n of the script(.|\n)*hands it on as --n"),
    ],
)
def test_what_the_trainer_has_no_word_for(change: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        trainer_settings({**PLAIN, **change})


@pytest.mark.parametrize(
    ("distribution", "expected"),
    [
        (None, None),
        ({"smdistributed": {"dataparallel": {"enabled": True}}}, ("Torchrun", {})),
        ({"torch_distributed": {"enabled": True}}, ("Torchrun", {})),
        (
            {"smdistributed": {"modelparallel": {"parameters": {"hybrid_shard_degree": 4}}}, "mpi": {"enabled": True}},
            ("Torchrun", {"smp": {"hybrid_shard_degree": 4}}),
        ),
        (
            {"mpi": {"enabled": True, "processes_per_host": 8, "custom_mpi_options": "-x A"}},
            ("MPI", {"process_count_per_node": 8, "mpi_additional_options": ["-x", "A"]}),
        ),
    ],
)
def test_what_starts_the_processes_under_version_3(distribution: Any, expected: Any) -> None:
    assert runner(distribution) == expected


def test_a_distribution_that_version_3_lacks() -> None:
    with pytest.raises(ValueError, match=r"pytorchxla(.|\n)*sagemaker<3"):
        runner({"pytorchxla": {"enabled": True}})


class Failed(Exception):
    """How a played SDK tells that a job has failed."""


class Played:
    """A job of a played SDK, and a record of what the SDK was told."""

    def __init__(self, ends: BaseException | None = None) -> None:
        self.told: dict[str, Any] = {}
        self.ends = ends
        self.name = self.training_job_name = "job-1"

    def wait(self, logs: Any = None) -> None:
        self.told["logs"] = logs
        if self.ends is not None:
            raise self.ends

    def tell(self, part: str) -> Any:
        def told(**facts: Any) -> Any:
            self.told[part] = facts
            return facts

        return told


@pytest.fixture
def botocore(monkeypatch: pytest.MonkeyPatch) -> None:
    errors = {"BotoCoreError": type("BotoCoreError", (Exception,), {}), "ClientError": type("E", (Exception,), {})}
    module(monkeypatch, "botocore")
    module(monkeypatch, "botocore.exceptions", **errors)


def module(monkeypatch: pytest.MonkeyPatch, name: str, **content: Any) -> None:
    """Make `import name` find a module with this content."""
    made = types.ModuleType(name)
    vars(made).update(content)
    monkeypatch.setitem(sys.modules, name, made)
    parent, _, child = name.rpartition(".")
    if parent:
        monkeypatch.setattr(sys.modules[parent], child, made, raising=False)


def play(monkeypatch: pytest.MonkeyPatch, version: str, job: Played) -> None:
    """Have version 2 or 3 of the SDK there, with one job."""
    monkeypatch.setattr(importlib.metadata, "version", lambda name: version)
    module(monkeypatch, "sagemaker")
    if version < "3":
        module(monkeypatch, "sagemaker.exceptions", UnexpectedStatusException=Failed)
        module(monkeypatch, "sagemaker.huggingface", HuggingFace=lambda **facts: _Estimator(job, facts))
        return
    for name in ("core", "core.utils", "core.training", "train"):
        module(monkeypatch, f"sagemaker.{name}")
    module(monkeypatch, "sagemaker.core.utils.exceptions", FailedStatusError=Failed)
    module(monkeypatch, "sagemaker.core.shapes", Tag=dict, MetricDefinition=dict)
    classes = ("SourceCode", "Compute", "StoppingCondition", "Networking", "OutputDataConfig", "CheckpointConfig")
    module(monkeypatch, "sagemaker.core.training.configs", InputData=dict, **dict.fromkeys(classes, dict))
    module(monkeypatch, "sagemaker.core.image_uris", retrieve=lambda **facts: f"image of {facts['version']}")
    module(monkeypatch, "sagemaker.train.distributed", Torchrun=job.tell("torchrun"), SMP=dict)
    monkeypatch.setattr(sys.modules["sagemaker.train"], "ModelTrainer", lambda **facts: _Trainer(job, facts), False)
    module(monkeypatch, "sagemaker.core.helper")
    module(monkeypatch, "sagemaker.core.helper.session_helper", Session=lambda boto_session: boto_session)
    module(monkeypatch, "boto3", Session=lambda: types.SimpleNamespace(region_name=os.environ["AWS_DEFAULT_REGION"]))


class _Estimator:
    def __init__(self, job: Played, facts: dict[str, Any]) -> None:
        job.told.update(facts, region=os.environ["AWS_DEFAULT_REGION"])
        self.job = self.latest_training_job = job

    def fit(self, inputs: Any, wait: bool) -> None:
        self.job.told["fit"] = (inputs, wait)


class _Trainer:
    def __init__(self, job: Played, facts: dict[str, Any]) -> None:
        job.told.update(facts, region=os.environ["AWS_DEFAULT_REGION"])
        self.job = self._latest_training_job = job

    def with_metric_definitions(self, metrics: Any) -> None:
        self.job.told["metrics"] = metrics

    def train(self, input_data_config: Any, wait: bool, logs: bool) -> None:
        self.job.told["train"] = (input_data_config, wait, logs)


@pytest.fixture
def files(tmp_path: Path) -> str:
    """Return the line of a config file that names a table of inputs and one of metrics."""
    (tmp_path / "in.tsv").write_text("channel\tlocation\ntrain\ts3://b/train\n")
    (tmp_path / "out.tsv").write_text("name\tpattern\nloss\tl=(.*)\n")
    return f"sagemaker_inputs_file: {tmp_path}/in.tsv, sagemaker_metrics_file: {tmp_path}/out.tsv"


def test_version_2_gets_the_arguments_as_they_are(monkeypatch, botocore, files, capsys) -> None:
    job = Played()
    play(monkeypatch, "2.257.7", job)
    plan = plan_of("SCRIPT --lr 1", f"{{{JOB}, distributed_type: 'NO', region: eu-west-1, {files}}}")
    assert SageMakerLauncher().run(plan) == 0
    expected = {name: value for name, value in plan.request.items() if name != "inputs"}
    told = {"fit": ({"train": "s3://b/train"}, False), "logs": "All", "region": "eu-west-1"}
    assert job.told == {**expected, **told}
    assert "asked SageMaker for job job-1" in capsys.readouterr().err
    assert "AWS_DEFAULT_REGION" not in os.environ


@pytest.mark.parametrize(("kind", "started"), [("DATA_PARALLEL", {}), ("MODEL_PARALLEL", {"smp": {}}), ("'NO'", None)])
def test_version_3_gets_a_trainer(monkeypatch, botocore, files, kind, started) -> None:
    job = Played()
    play(monkeypatch, "3.27.0", job)
    more = f"additional_args: {{tags: [{{Key: a, Value: b}}]}}, {files}"
    plan = plan_of("SCRIPT --lr 1", f"{{{JOB}, distributed_type: {kind}, {more}}}")
    assert SageMakerLauncher().run(plan) == 0
    assert job.told["training_image"] == "image of 4.17.0"
    assert job.told["sagemaker_session"].region_name == "us-east-1"
    assert job.told["distributed"] == started
    assert job.told["source_code"]["entry_script"] == "plans.py"
    assert job.told["compute"] == {"instance_type": "ml.p4d.24xlarge", "instance_count": 1}
    assert job.told["tags"] == [{"key": "a", "value": "b"}]
    assert job.told["metrics"] == [{"name": "loss", "regex": "l=(.*)"}]
    data = [{"channel_name": "train", "data_source": "s3://b/train"}]
    assert (job.told["train"], job.told["logs"]) == ((data, False, False), True)


@pytest.mark.parametrize("version", ["2.257.7", "3.27.0"])
@pytest.mark.parametrize(("reason", "code"), [("AlgorithmError: ExitCode 7 ErrorMessage", 7), ("no capacity", 1)])
def test_a_job_that_fails_gives_its_exit_code(monkeypatch, botocore, capsys, version, reason, code) -> None:
    play(monkeypatch, version, Played(Failed(reason)))
    assert SageMakerLauncher().run(plan_of("SCRIPT", ALONE)) == code
    assert f"job job-1 failed: {reason}" in capsys.readouterr().err


def test_ctrl_c_leaves_the_job_alone_and_says_how_to_stop_it(monkeypatch, botocore, capsys) -> None:
    play(monkeypatch, "2.257.7", Played(KeyboardInterrupt()))
    with pytest.raises(KeyboardInterrupt):
        SageMakerLauncher().run(plan_of("SCRIPT", ALONE))
    assert "aws sagemaker stop-training-job --training-job-name job-1" in capsys.readouterr().err


def test_what_the_sdk_refuses_is_told_in_four_parts(monkeypatch, botocore) -> None:
    play(monkeypatch, "2.257.7", Played())

    def refuse(**facts: Any) -> None:
        raise ValueError("no such image")

    monkeypatch.setattr(sys.modules["sagemaker.huggingface"], "HuggingFace", refuse)
    with pytest.raises(RuntimeError, match=r"(?s)^Given: a job of plans.py .*ValueError: no such image.*What to do"):
        SageMakerLauncher().run(plan_of("SCRIPT", ALONE))


@pytest.mark.parametrize(("version", "said"), [(None, "sagemaker isn't installed"), ("1.72.0", "version 1.72.0 of")])
def test_without_an_sdk_the_extra_is_named(monkeypatch, version, said) -> None:
    def installed(name: str) -> str:
        if version is None:
            raise importlib.metadata.PackageNotFoundError(name)
        return version

    monkeypatch.setattr(importlib.metadata, "version", installed)
    with pytest.raises(ImportError, match=rf"{said}(.|\n)*accelerate\[sagemaker\]"):
        sagemaker_sdk.sdk_version()


def parsed(line: str) -> argparse.Namespace:
    return launch_command_parser().parse_args(line.replace("SCRIPT", SCRIPT).split())


def job_config(**facts: Any) -> SageMakerConfig:
    required = {"distributed_type": "NO", "ec2_instance_type": "ml.p4d.24xlarge", "iam_role_name": "role"}
    return SageMakerConfig.from_dict({"compute_environment": "AMAZON_SAGEMAKER", **required, **facts})


def test_a_program_can_prepare_a_job(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "environ", dict(os.environ))
    arguments, channels = prepare_sagemager_args_inputs(job_config(profile="me"), parsed("--cpu SCRIPT --lr 1"))
    assert arguments == {
        **{name: value for name, value in PLAIN.items() if name != "inputs"},
        "hyperparameters": {"lr": 1},
        "environment": {"ACCELERATE_USE_CPU": "true", **ENV},
    }
    assert channels is None
    assert (os.environ["AWS_PROFILE"], os.environ["AWS_DEFAULT_REGION"]) == ("me", "us-east-1")


def test_a_program_can_launch_a_job(monkeypatch, botocore) -> None:
    job = Played()
    play(monkeypatch, "2.257.7", job)
    sagemaker_launcher(job_config(), parsed("SCRIPT"))
    assert job.told["fit"] == (None, False)
    job.ends = Failed("ExitCode 3")
    with pytest.raises(RuntimeError, match="exit code 3"):
        sagemaker_launcher(job_config(), parsed("SCRIPT"))
