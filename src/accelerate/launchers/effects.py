"""Which settings change nothing in a run, whatever starts it, and why: a row for each reason."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from accelerate.config.deepspeed import GROUP, DeepSpeedSettings
from accelerate.config.enums import DistributedType
from accelerate.config.fsdp import FullyShardedDataParallelPlugin
from accelerate.config.megatron import MegatronSettings
from accelerate.config.option import options
from accelerate.launchers.settings import LaunchSettings

OF_FSDP = tuple(one.dest for one in options(FullyShardedDataParallelPlugin).values())
OF_DEEPSPEED = tuple(one.dest for one in options(DeepSpeedSettings).values() if one.group == GROUP)
OF_MEGATRON = tuple(one.dest for one in options(MegatronSettings).values())
MEGATRON_LM = DistributedType.MEGATRON_LM
#: Settings that only DeepSpeed's own runner reads.
OF_RUNNER = (
    "deepspeed_multinode_launcher", "deepspeed_hostfile", "deepspeed_inclusion_filter", "deepspeed_exclusion_filter",
)  # fmt: skip
OF_STAGE_3 = (
    "offload_param_device", "offload_param_nvme_path", "zero3_init_flag", "zero3_save_16bit_model",
    "deepspeed_moe_layer_cls_names",
)  # fmt: skip
#: Values that ask for nothing.
IDLE = (False, "none", "standard")


class Row(NamedTuple):
    """Settings, by `dest`, that change nothing when something holds, and how a person would say that."""

    when: Callable[[LaunchSettings], bool]
    dests: tuple[str, ...]
    reason: str


def _below_stage_3(config: LaunchSettings) -> bool:
    """Whether DeepSpeed leaves parameters whole."""
    return config.uses_deepspeed and config.get("zero_stage") in (0, 1, 2)


def _without_nvme(what: str) -> Callable[[LaunchSettings], bool]:
    """Return whether DeepSpeed keeps nothing of a kind on NVMe, as far as it is said here."""
    return lambda config: (
        config.uses_deepspeed
        and config.get("deepspeed_config_file") is None
        and config.get(f"offload_{what}_device") != "nvme"
    )


ROWS: tuple[Row, ...] = (
    Row(lambda config: not config.uses_fsdp, OF_FSDP, "parameters are sharded with --use_fsdp only"),
    Row(
        lambda config: config.job is None,
        ("aws_access_key_id", "aws_secret_access_key"),
        "the config file isn't one of jobs on SageMaker",
    ),
    Row(lambda config: not config.uses_deepspeed, OF_DEEPSPEED, "DeepSpeed trains with --use_deepspeed only"),
    Row(lambda config: config.kind != MEGATRON_LM, OF_MEGATRON, "Megatron-LM trains with --use_megatron_lm only"),
    Row(
        lambda config: config.uses_deepspeed and config.deepspeed_runner is None,
        OF_RUNNER,
        "torch's launcher starts the processes",
    ),
    Row(_below_stage_3, OF_STAGE_3, "it is about parameters, which ZeRO divides from stage 3 on"),
    Row(_without_nvme("optimizer"), ("offload_optimizer_nvme_path",), "no optimizer states are kept on NVMe"),
    Row(_without_nvme("param"), ("offload_param_nvme_path",), "no parameters are kept on NVMe"),
    Row(lambda config: config.cpu_is_chosen, ("gpu_ids",), "the run is one on the CPU"),
    Row(lambda config: not config.on_tpu, ("downcast_bf16",), "the run isn't one on TPUs"),
    Row(
        lambda config: config.on_tpu and config.get("mixed_precision") != "bf16",
        ("downcast_bf16",),
        "it is about --mixed_precision bf16",
    ),
)


def without_effect(config: LaunchSettings) -> dict[str, str]:
    """Return the reason for each setting, by `dest`, that changes nothing."""
    return {dest: row.reason for row in ROWS if row.when(config) for dest in row.dests if config.get(dest) not in IDLE}
