"""What the config file is: keys, defaults, sections, and what is written back."""

from __future__ import annotations

import json

import pytest
import yaml

from accelerate.base.environ import reading
from accelerate.config.cluster import SECTIONS, ClusterConfig
from accelerate.config.enums import ComputeEnvironment, DistributedType, DynamoBackend
from accelerate.config.load import load_config
from accelerate.config.option import Section, options
from accelerate.config.sagemaker import SageMakerConfig

NOT_BUILT = [
    name for name, one in options(ClusterConfig).items() if isinstance(one.kind, Section) and name not in SECTIONS
]


@pytest.fixture
def load(tmp_path):
    """Return a function that writes a config file and loads it."""

    def load(text: str, name: str = "config.yaml") -> ClusterConfig | SageMakerConfig:
        path = tmp_path / name
        path.write_text(text)
        return load_config(path)

    return load


def test_the_least_that_a_file_must_say(load):
    config = load("distributed_type: NO\n")
    assert config == ClusterConfig(
        compute_environment=ComputeEnvironment.LOCAL_MACHINE,
        distributed_type=DistributedType.NO,
        mixed_precision=None,
        use_cpu=False,
        debug=False,
        num_processes=1,
    )
    assert config.given == {"distributed_type"}
    assert config.values() == {"distributed_type": DistributedType.NO}


@pytest.mark.parametrize(
    ("line", "name", "value"),
    [
        ("mixed_precision: no", "mixed_precision", "no"),
        ("mixed_precision: FP16", "mixed_precision", "fp16"),
        ("mixed_precision: null", "mixed_precision", None),
        ("use_cpu: yes", "use_cpu", True),
        ("use_cpu: 'true'", "use_cpu", True),
        ("downcast_bf16: 'no'", "downcast_bf16", False),
        ("gpu_ids: 0", "gpu_ids", "0"),
        ("gpu_ids: 0,1", "gpu_ids", "0,1"),
        ("gpu_ids: all", "gpu_ids", "all"),
        ("num_processes: '4'", "num_processes", 4),
        ("num_processes: -1", "num_processes", -1),
        ("main_process_port: 0", "main_process_port", 0),
        ("main_process_ip: 10.0.0.1", "main_process_ip", "10.0.0.1"),
        ("rdzv_backend: c10d", "rdzv_backend", "c10d"),
        ("same_network: true", "same_network", True),
        ("enable_cpu_affinity: true", "enable_cpu_affinity", True),
        ("tpu_env: [A=1, B=2]", "tpu_env", ["A=1", "B=2"]),
        ("tpu_vm: null", "tpu_vm", None),
        ("compute_environment: LOCAL_MACHINE", "compute_environment", ComputeEnvironment.LOCAL_MACHINE),
        ("fp16: true", "mixed_precision", "fp16"),
        ("dynamo_backend: EAGER", "dynamo_config", {"dynamo_backend": "EAGER"}),
        ("dynamo_backend: NO", "dynamo_config", {}),
    ],
)
def test_what_a_line_means(load, line, name, value):
    config = load(f"distributed_type: MULTI_GPU\n{line}\n")
    assert getattr(config, name) == value
    assert (name in config.given) is (value is not None)


@pytest.mark.parametrize(
    ("written", "meant"),
    [("NO", "NO"), ("'NO'", "NO"), ("no", "NO"), ("multi_gpu", "MULTI_GPU"), ("TPU", "XLA"), ("XLA", "XLA")],
)
def test_the_kind_of_run(load, written, meant):
    config = load(f"distributed_type: {written}\n")
    assert config.distributed_type is DistributedType(meant)
    assert config.num_processes == (1 if meant == "NO" else -1)


@pytest.mark.parametrize(
    ("text", "given", "advice"),
    [
        (
            "num_processes: 2\n",
            "config file {path} without `distributed_type`",
            "add a line `distributed_type: …`, or write the file anew with `accelerate config`",
        ),
        (
            "distributed_type: NO\nnum_proceses: 2\n",
            "unknown keys ['num_proceses'] in config file {path}",
            "'num_proceses': Did you mean 'num_processes'?",
        ),
        (
            "distributed_type: MULTI_GPUS\n",
            "distributed_type in config file {path} = 'MULTI_GPUS'",
            "Did you mean 'MULTI_GPU'?",
        ),
        (
            "distributed_type: NO\nmixed_precision: fp17\n",
            "mixed_precision in config file {path} = 'fp17'",
            "Did you mean 'fp16'?",
        ),
        (
            "distributed_type: NO\nnum_processes: 0\n",
            "num_processes in config file {path} = 0",
            "give a whole number, 1 or more, or -1",
        ),
        (
            "distributed_type: NO\nfsdp_config: 3\n",
            "fsdp_config in config file {path} = 3",
            "give a section of `key: value` lines",
        ),
        (
            "distributed_type: NO\ndynamo_config: {dynamo_backed: eager}\n",
            "unknown keys ['dynamo_backed'] in section dynamo_config of config file {path}",
            "'dynamo_backed': Did you mean 'dynamo_backend'?",
        ),
        (
            "distributed_type: NO\ndynamo_config: {dynamo_mode: autotune}\n",
            "dynamo_config.dynamo_mode in config file {path} = 'autotune'",
            "Did you mean 'max-autotune'?",
        ),
        (
            "compute_environment: AMAZON_SAGEMAKER\ndistributed_type: NO\nec2_instance_type: x\n",
            "config file {path} without `iam_role_name`",
            "add a line `iam_role_name: …`, or write the file anew with `accelerate config`",
        ),
    ],
)
def test_what_is_refused(load, tmp_path, text, given, advice):
    with pytest.raises(ValueError) as caught:
        load(text)
    lines = str(caught.value).splitlines()
    assert [line.split(": ")[0] for line in lines] == ["Given", "Why not", "Allowed", "What to do"]
    assert lines[0] == "Given: " + given.format(path=tmp_path / "config.yaml")
    assert lines[3] == f"What to do: {advice}"


def test_settings_of_a_section_are_beside_the_others(load):
    config = load(
        "distributed_type: MULTI_GPU\nuse_cpu: true\nnum_processes: 2\nmixed_precision: fp8\ntpu_vm: [a]\n"
        "dynamo_config: {dynamo_backend: INDUCTOR, mode: max-autotune, use_dynamic: y, dynamo_use_fullgraph: null}\n"
    )
    assert config.dynamo_config == {
        "dynamo_backend": "INDUCTOR",
        "dynamo_mode": "max-autotune",
        "dynamo_use_dynamic": True,
        "dynamo_use_fullgraph": None,
    }
    assert config.values() == {
        "distributed_type": DistributedType.MULTI_GPU,
        "cpu": True,
        "num_processes": 2,
        "mixed_precision": "fp8",
        "vm": ["a"],
        "dynamo_backend": DynamoBackend.INDUCTOR,
        "dynamo_mode": "max-autotune",
        "dynamo_use_dynamic": True,
    }


@pytest.mark.parametrize("name", NOT_BUILT)
def test_a_section_of_a_capability_that_nobody_declared_is_kept(load, tmp_path, name):
    section = {"a_key": 1, "another": {"deep": [1, 2]}, "text": "FULL_SHARD"}
    config = load(yaml.safe_dump({"distributed_type": "MULTI_GPU", name: section}))
    assert getattr(config, name) == section
    assert config.values()[name] == section
    config.to_yaml_file(tmp_path / "again.yaml")
    assert getattr(ClusterConfig.from_yaml_file(tmp_path / "again.yaml"), name) == section


@pytest.mark.parametrize("name", [*NOT_BUILT, *SECTIONS])
@pytest.mark.parametrize("empty", ["{}", "null"])
def test_an_empty_section_says_nothing(load, name, empty):
    config = load(f"distributed_type: MULTI_GPU\n{name}: {empty}\n")
    assert getattr(config, name) == {}
    assert config.values() == {"distributed_type": DistributedType.MULTI_GPU}
    assert name not in config.to_dict()


FULL = {
    "compute_environment": "LOCAL_MACHINE",
    "distributed_type": "MULTI_GPU",
    "mixed_precision": "bf16",
    "use_cpu": False,
    "debug": True,
    "num_processes": 8,
    "machine_rank": 1,
    "num_machines": 2,
    "gpu_ids": "all",
    "main_process_ip": "10.0.0.1",
    "main_process_port": 29501,
    "rdzv_backend": "c10d",
    "same_network": True,
    "main_training_function": "train",
    "enable_cpu_affinity": True,
    "fp8_config": {"backend": "TE"},
    "deepspeed_config": {"zero_stage": 3},
    "fsdp_config": {"fsdp_version": 2},
    "parallelism_config": {"parallelism_config_tp_size": 2},
    "megatron_lm_config": {"megatron_lm_tp_degree": 2},
    "mpirun_config": {"mpirun_hostfile": "hosts"},
    "downcast_bf16": False,
    "tpu_name": "name",
    "tpu_zone": "zone",
    "tpu_use_cluster": False,
    "tpu_use_sudo": False,
    "command_file": "file",
    "commands": ["a", "b"],
    "tpu_vm": ["c"],
    "tpu_env": ["D=1"],
    "dynamo_config": {"dynamo_backend": "EAGER"},
    "blocking_save": False,
}


def test_every_key_of_the_file_is_a_field():
    assert list(FULL) == list(options(ClusterConfig))


def test_everything_that_is_written_is_kept_and_given(load, tmp_path):
    config = load(yaml.safe_dump(FULL))
    assert config.to_dict() == FULL
    assert config.given == set(FULL)
    plain = [options(ClusterConfig)[name].dest for name in FULL if name not in SECTIONS]
    assert set(config.values()) == {
        *plain,
        "dynamo_backend",
        "fsdp_version",
        "zero_stage",
        "megatron_lm_tp_degree",
        "mpirun_hostfile",
        "parallelism_config_tp_size",
    }
    config.to_json_file(tmp_path / "out.json")
    assert json.loads((tmp_path / "out.json").read_text()) == FULL
    assert ClusterConfig.from_json_file(tmp_path / "out.json") == config
    config.to_yaml_file(tmp_path / "out.yaml")
    assert yaml.safe_load((tmp_path / "out.yaml").read_text()) == FULL
    assert ClusterConfig.from_yaml_file(tmp_path / "out.yaml") == config


def test_what_is_none_or_empty_is_not_written():
    config = ClusterConfig("LOCAL_MACHINE", "NO", None, False, False)
    assert config.to_dict() == {
        "compute_environment": "LOCAL_MACHINE",
        "distributed_type": "NO",
        "use_cpu": False,
        "debug": False,
        "num_processes": -1,
        "machine_rank": 0,
        "num_machines": 1,
        "rdzv_backend": "static",
        "same_network": False,
        "main_training_function": "main",
        "enable_cpu_affinity": False,
        "downcast_bf16": False,
        "tpu_use_cluster": False,
        "tpu_use_sudo": False,
    }


def test_a_config_built_by_hand_is_checked_and_given_as_it_is():
    config = ClusterConfig(
        "LOCAL_MACHINE", "MULTI_CPU", "fp16", True, False, num_processes=2, dynamo_config={"mode": "lite"}
    )
    assert config.distributed_type is DistributedType.MULTI_CPU
    assert config.values()["dynamo_mode"] == "lite"
    assert {"cpu": True, "num_processes": 2, "debug": False}.items() <= config.values().items()
    with pytest.raises(ValueError, match="mixed_precision in the config = 'fp17'"):
        ClusterConfig("LOCAL_MACHINE", "NO", "fp17", False, False)


def test_process_config_fills_in_what_may_be_left_out():
    assert ClusterConfig.process_config({"distributed_type": "NO", "fp16": True}) == {
        "compute_environment": ComputeEnvironment.LOCAL_MACHINE,
        "distributed_type": "NO",
        "mixed_precision": "fp16",
        "use_cpu": False,
        "debug": False,
        "enable_cpu_affinity": False,
        "num_processes": 1,
    }


@pytest.mark.parametrize("name", ["default_config.yaml", "default_config.json"])
def test_the_default_file(tmp_path, name):
    folder = tmp_path / "accelerate"
    folder.mkdir()
    (folder / name).write_text('{"distributed_type": "MULTI_CPU", "num_processes": 3}')
    with reading({"HF_HOME": str(tmp_path)}):
        assert load_config() == ClusterConfig.from_yaml_file() == ClusterConfig.from_json_file()
        assert load_config().num_processes == 3


def test_a_missing_file():
    with pytest.raises(FileNotFoundError, match="there is no such file"):
        load_config("no_such_file.yaml")


def test_sagemaker_has_a_schema_of_its_own(load):
    config = load(
        "compute_environment: AMAZON_SAGEMAKER\ndistributed_type: DATA_PARALLEL\n"
        "ec2_instance_type: ml.p3.2xlarge\niam_role_name: role\nmixed_precision: fp16\n"
    )
    assert isinstance(config, SageMakerConfig)
    assert config.to_dict() == {
        "compute_environment": "AMAZON_SAGEMAKER",
        "distributed_type": "DATA_PARALLEL",
        "mixed_precision": "fp16",
        "use_cpu": False,
        "debug": False,
        "ec2_instance_type": "ml.p3.2xlarge",
        "iam_role_name": "role",
        "region": "us-east-1",
        "num_machines": 1,
        "gpu_ids": "all",
        "base_job_name": "accelerate-sagemaker-1",
        "pytorch_version": "1.10.2",
        "transformers_version": "4.17.0",
        "py_version": "py38",
        "enable_cpu_affinity": False,
    }
    assert SageMakerConfig.from_dict(config.to_dict()) == config


@pytest.mark.parametrize("written", ["BertLayer, BertHead", ["BertLayer", "BertHead"]])
def test_names_are_rewritten_as_earlier_releases_read_them(written):
    content = {"distributed_type": "FSDP", "fsdp_config": {"fsdp_transformer_layer_cls_to_wrap": written}}
    config = ClusterConfig.from_dict(content)
    assert config.to_dict()["fsdp_config"] == {"fsdp_transformer_layer_cls_to_wrap": "BertLayer,BertHead"}
    assert config.values()["fsdp_transformer_layer_cls_to_wrap"] == ["BertLayer", "BertHead"]
