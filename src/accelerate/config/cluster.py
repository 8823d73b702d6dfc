"""What the config file of a machine, or a cluster of them, says: :class:`ClusterConfig`.

A setting is one field with its Option. Sections whose settings are declared by a plugin (SECTIONS) are checked key by
key; the others are kept as they are, for the capability that will read them.
"""
# ruff: noqa: RUF009  (option() returns a dataclasses.field)

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from accelerate.config.deepspeed import DeepSpeedSettings
from accelerate.config.dynamo import TorchDynamoPlugin
from accelerate.config.enums import ComputeEnvironment, DistributedType, value_of
from accelerate.config.files import check_keys
from accelerate.config.fsdp import FullyShardedDataParallelPlugin
from accelerate.config.megatron import MegatronSettings
from accelerate.config.mpirun import MpirunSettings
from accelerate.config.option import Boolean, Choice, Integer, Listing, Option, Section, Text, option, options, shared
from accelerate.config.parallelism_settings import ParallelismSettings
from accelerate.config.resolve import Settings
from accelerate.config.schema import BaseConfig

DISTRIBUTED = "Distributed GPUs"
RESOURCES = "Resource Selection Arguments"
TPU = "TPU"

# Section of the file -> the dataclass that declares its settings.
SECTIONS: dict[str, type] = {
    "deepspeed_config": DeepSpeedSettings,
    "dynamo_config": TorchDynamoPlugin,
    "fsdp_config": FullyShardedDataParallelPlugin,
    "megatron_lm_config": MegatronSettings,
    "mpirun_config": MpirunSettings,
    "parallelism_config": ParallelismSettings,
}
# Before XLA covered more than TPUs, its runs were called TPU.
FORMER_TYPES = {"tpu": "xla"}


def _several_machines(answers: Mapping[str, Any]) -> bool:
    """Whether the answers so far ask for more than one machine."""
    return answers.get("num_machines", 1) > 1


def _distributed(answers: Mapping[str, Any]) -> bool:
    """Whether the answers so far ask for more than one process."""
    return answers.get("distributed_type", DistributedType.NO) != DistributedType.NO


def _accelerators(answers: Mapping[str, Any]) -> bool:
    """Whether the answers so far ask for accelerators that have numbers."""
    without = (DistributedType.MULTI_CPU, DistributedType.XLA)
    return not answers.get("cpu") and answers.get("distributed_type") not in without


def _tpu(answers: Mapping[str, Any]) -> bool:
    """Whether the answers so far ask for TPUs."""
    return answers.get("distributed_type") == DistributedType.XLA


def _tpu_pod(answers: Mapping[str, Any]) -> bool:
    """Whether the answers so far ask for a pod of TPUs."""
    return bool(_tpu(answers) and answers.get("tpu_use_cluster"))


def _section(name: str, purpose: str) -> Any:
    """Return the field of a section of the file."""
    return option(None, kind=Section(), yaml=name, help=purpose)


@dataclass
class ClusterConfig(BaseConfig):
    """The settings of a launch on one's own machines; `num_processes` -1 means that it must be given at launch."""

    distributed_type: DistributedType = option(
        kind=Choice.of(DistributedType, meanings=FORMER_TYPES),
        yaml="distributed_type",
        help="The kind of run.",
        ask="Which type of run is this?",
    )
    num_processes: int = option(
        -1,
        kind=Integer(1, also=(-1,)),
        yaml="num_processes",
        flag="--num_processes",
        group=RESOURCES,
        help="How many processes to start in total, over all machines.",
        ask="How many processes should run in total, over all machines?",
        when=_distributed,
        suggest=1,
    )
    machine_rank: int = option(
        0,
        kind=Integer(0),
        yaml="machine_rank",
        flag="--machine_rank",
        group=DISTRIBUTED,
        help="The rank of this machine, 0 for the main one.",
        ask="What is the rank of this machine?",
        when=_several_machines,
    )
    num_machines: int = option(
        1,
        kind=Integer(1),
        yaml="num_machines",
        flag="--num_machines",
        group=RESOURCES,
        help="How many machines take part.",
        ask="How many machines take part?",
        when=_distributed,
    )
    gpu_ids: str | None = option(
        None,
        kind=Text(),
        yaml="gpu_ids",
        flag="--gpu_ids",
        group=DISTRIBUTED,
        help="The accelerators of this machine to use, with commas between their numbers, or `all`.",
        ask="Which accelerators of this machine should be used (numbers with commas between, or all)?",
        when=_accelerators,
        suggest="all",
    )
    main_process_ip: str | None = option(
        None,
        kind=Text(),
        yaml="main_process_ip",
        flag="--main_process_ip",
        group=DISTRIBUTED,
        help="The address of the machine of rank 0.",
        ask="What is the address of the machine of rank 0?",
        when=_several_machines,
    )
    main_process_port: int | None = option(
        None,
        kind=Integer(0),
        yaml="main_process_port",
        flag="--main_process_port",
        group=DISTRIBUTED,
        help="The port by which processes find each other; 0 picks a free one.",
        ask="By which port should the processes find each other?",
        when=_several_machines,
        suggest=29500,
    )
    rdzv_backend: str = option(
        "static",
        kind=Text(),
        yaml="rdzv_backend",
        flag="--rdzv_backend",
        group=DISTRIBUTED,
        help="How machines find each other: static, c10d, …",
        ask="How should the machines find each other (static, c10d, ...)?",
        when=_several_machines,
    )
    same_network: bool = option(
        False,
        kind=Boolean(),
        yaml="same_network",
        flag="--same_network",
        group=DISTRIBUTED,
        help="All machines are on the same local network.",
        ask="Are all machines on the same local network?",
        when=_several_machines,
    )
    main_training_function: str = option(
        "main",
        kind=Text(),
        yaml="main_training_function",
        flag="--main_training_function",
        group=TPU,
        help="The function of the script that every TPU process calls.",
        ask="Which function of your script should every TPU process call?",
        when=_tpu,
    )
    enable_cpu_affinity: bool = shared(Settings, "enable_cpu_affinity", default=False)
    fp8_config: dict[str, Any] | None = _section("fp8_config", "How 8-bit floating-point arithmetic is done.")
    deepspeed_config: dict[str, Any] | None = _section("deepspeed_config", "DeepSpeed.")
    fsdp_config: dict[str, Any] | None = _section("fsdp_config", "Fully sharded data parallelism.")
    parallelism_config: dict[str, Any] | None = _section("parallelism_config", "Combined kinds of parallelism.")
    megatron_lm_config: dict[str, Any] | None = _section("megatron_lm_config", "Megatron-LM.")
    mpirun_config: dict[str, Any] | None = _section("mpirun_config", "Starting processes with mpirun.")
    downcast_bf16: bool = option(
        False,
        kind=Boolean(),
        yaml="downcast_bf16",
        flag="--downcast_bf16",
        env="ACCELERATE_DOWNCAST_BF16",
        group=TPU,
        help="With bf16 on TPU, make `double` tensors fp32 rather than bf16.",
        ask="With bf16 on TPU, should float tensors be bf16 and double tensors fp32?",
        when=lambda answers: _tpu(answers) and answers.get("mixed_precision") == "bf16",
    )
    tpu_name: str | None = option(
        None,
        kind=Text(),
        yaml="tpu_name",
        help="The name of the TPU.",
        ask="What is the name of your TPU?",
        when=_tpu_pod,
    )
    tpu_zone: str | None = option(
        None, kind=Text(), yaml="tpu_zone", help="The zone of the TPU.", ask="In which zone is your TPU?", when=_tpu_pod
    )
    tpu_use_cluster: bool = option(
        False,
        kind=Boolean(),
        yaml="tpu_use_cluster",
        flag="--tpu_cluster",
        dest="tpu_use_cluster",
        group=TPU,
        help="Start on every machine of a TPU pod.",
        ask="Are you using a TPU pod?",
        when=_tpu,
    )
    tpu_use_sudo: bool = option(
        False,
        kind=Boolean(),
        yaml="tpu_use_sudo",
        flag="--tpu_use_sudo",
        group=TPU,
        help="Run the commands on a TPU pod with `sudo`.",
        ask="Should commands on the TPU pod be run with sudo?",
        when=_tpu_pod,
    )
    command_file: str | None = option(
        None, kind=Text(), yaml="command_file", help="A file with the commands to run on a TPU pod before training."
    )
    commands: list[str] | None = option(
        None, kind=Listing(Text(), repeat=True), yaml="commands", help="Commands to run on a TPU pod before training."
    )
    tpu_vm: list[str] | None = option(
        None,
        kind=Listing(Text(), repeat=True),
        yaml="tpu_vm",
        flag="--vm",
        group=TPU,
        help="The name of a virtual machine of the TPU; may be given several times.",
    )
    tpu_env: list[str] | None = option(
        None,
        kind=Listing(Text(), repeat=True),
        yaml="tpu_env",
        flag="--env",
        group=TPU,
        help="An environment variable, NAME=VALUE, to set on the TPU's machines; may be given several times.",
    )
    dynamo_config: dict[str, Any] | None = _section("dynamo_config", "Compiling the model with `torch.compile`.")
    blocking_save: bool | None = shared(Settings, "blocking_save", default=None)

    def __post_init__(self) -> None:
        for name, declared in options(ClusterConfig).items():
            if isinstance(declared.kind, Section) and getattr(self, name) is None:
                setattr(self, name, {})
        super().__post_init__()

    @classmethod
    def checked(cls, content: Mapping[str, Any], where: str) -> dict[str, Any]:
        """Return the values of `content` as the kinds of their Options, those of known sections included."""
        values = super().checked(content, where)
        for name, plugin in SECTIONS.items():
            if values.get(name):
                values[name] = read_section(name, plugin, values[name], where)
        return values

    def values(self) -> dict[str, Any]:
        """Return what was written down, by `dest`; the settings of known sections stand beside the others.

        A section whose settings no plugin declares keeps its name and its content.
        """
        found: dict[str, Any] = {}
        for name, declared in options(ClusterConfig).items():
            value = getattr(self, name) if name in self.given else None
            if value is not None and name in SECTIONS:
                found.update(by_dest(SECTIONS[name], value))
            elif value is not None and value != {}:
                found[declared.dest] = value
        return found


def read_section(name: str, plugin: type, content: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Return section `name` with full keys and checked, plain values; `plugin` declares its settings.

    Keys may leave out the section's own prefix: `backend` for `dynamo_backend`.
    """
    by_key = {str(declared.key): declared for declared in options(plugin).values() if declared.section == name}
    prefix = name.removesuffix("config")
    full = {key if key in by_key else f"{prefix}{key}" if f"{prefix}{key}" in by_key else key: key for key in content}
    check_keys(full, by_key, f"section {name} of {where}")
    found = {
        key: None if content[short] is None else by_key[key].read(content[short], f"{name}.{key} in {where}")
        for key, short in full.items()
    }
    return {key: _plain(by_key[key], value) for key, value in found.items()}


def _plain(declared: Option, value: Any) -> Any:
    """Return a value as a config file holds it: names in one line, as every release reads them."""
    kind = declared.kind
    return (
        kind.format(value) if isinstance(kind, Listing) and not kind.repeat and value is not None else value_of(value)
    )


def by_dest(plugin: type, section: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a section by `dest`, typed."""
    return {
        declared.dest: declared.read(section[str(declared.key)], str(declared.yaml))
        for declared in options(plugin).values()
        if declared.key in section and section[str(declared.key)] is not None
    }


def is_local(content: Mapping[str, Any]) -> bool:
    """Whether the content of a config file is that of one's own machines."""
    environment = content.get("compute_environment", ComputeEnvironment.LOCAL_MACHINE)
    return str(value_of(environment)).upper() != ComputeEnvironment.AMAZON_SAGEMAKER.value
