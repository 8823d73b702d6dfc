"""What a launch can say about DeepSpeed: :class:`DeepSpeedSettings`, a field a setting.

How weights are trained is told to the processes by variables; how DeepSpeed's own runner starts them on several
machines stays with the launch.
"""
# ruff: noqa: RUF009  (option() returns a dataclasses.field)

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from accelerate.base.constants import DEEPSPEED_MULTINODE_LAUNCHERS
from accelerate.config.enums import DistributedType
from accelerate.config.option import Boolean, Choice, Kind, Listing, Number, Text, option, shared
from accelerate.config.resolve import Settings

GROUP = "DeepSpeed Arguments"
SECTION = "deepspeed_config"
#: What starts processes on several machines; Intel's MPI is DeepSpeed's, but none of the public constant.
LAUNCHERS = (*DEEPSPEED_MULTINODE_LAUNCHERS, "impi")
#: Where optimizer states or parameters can be kept.
PLACES = Choice(("none", "cpu", "nvme"))
VALUE = Boolean(switch=False)

Answers = Mapping[str, Any]


def setting(
    name: str,
    kind: Kind,
    help: str,
    *,
    env: str | None = None,
    when: Callable[[Answers], bool] | None = None,
    **ask: Any,
) -> Any:
    """Return a field whose flag and key are `name`; it is asked for in runs with DeepSpeed, if it has a question."""
    return option(
        None,
        kind=kind,
        flag=f"--{name}",
        yaml=f"{SECTION}.{name}",
        env=env,
        group=GROUP,
        help=help,
        when=when or _by_fields,
        **ask,
    )


def _trained(answers: Answers) -> bool:
    """Whether the answers so far ask for DeepSpeed."""
    return answers.get("distributed_type") == DistributedType.DEEPSPEED


def _by_fields(answers: Answers) -> bool:
    """Whether DeepSpeed is set up here, rather than in a file of its own."""
    return _trained(answers) and not answers.get("deepspeed_config_file")


def _with(dest: str, value: Any) -> Callable[[Answers], bool]:
    """Return whether DeepSpeed is set up here, and `dest` was answered with `value`."""
    return lambda answers: _by_fields(answers) and answers.get(dest) == value


def _several_machines(answers: Answers) -> bool:
    """Whether DeepSpeed has several machines."""
    return _trained(answers) and answers.get("num_machines", 1) > 1


def _by_runner(answers: Answers) -> bool:
    """Whether DeepSpeed's own runner starts the processes."""
    return _several_machines(answers) and answers.get("deepspeed_multinode_launcher") != "standard"


@dataclass
class DeepSpeedSettings:
    """Everything that the section `deepspeed_config` of a config file can hold."""

    config_file: str | None = setting(
        "deepspeed_config_file",
        Text(),
        "DeepSpeed's own JSON file; it stands for the settings of ZeRO, offloading and saving.",
        env="ACCELERATE_DEEPSPEED_CONFIG_FILE",
        ask="Which JSON file of DeepSpeed do you want to use? (Empty: answer questions instead.)",
        when=_trained,
    )
    zero_stage: int | None = setting(
        "zero_stage",
        Choice(("0", "1", "2", "3"), int),
        "What ZeRO divides: 1 optimizer states, 2 gradients too, 3 parameters too.",
        env="ACCELERATE_DEEPSPEED_ZERO_STAGE",
        ask="What should ZeRO divide (1 optimizer states, 2 gradients too, 3 parameters too)?",
        suggest=2,
    )
    offload_optimizer_device: str | None = setting(
        "offload_optimizer_device",
        PLACES,
        "Where optimizer states are kept, if not on the accelerator.",
        env="ACCELERATE_DEEPSPEED_OFFLOAD_OPTIMIZER_DEVICE",
        ask="Where should optimizer states be kept (none: on the accelerator)?",
        suggest="none",
    )
    offload_param_device: str | None = setting(
        "offload_param_device",
        PLACES,
        "Where parameters are kept, if not on the accelerator; ZeRO stage 3.",
        env="ACCELERATE_DEEPSPEED_OFFLOAD_PARAM_DEVICE",
        ask="Where should parameters be kept (none: on the accelerator)?",
        when=_with("zero_stage", 3),
        suggest="none",
    )
    offload_optimizer_nvme_path: str | None = setting(
        "offload_optimizer_nvme_path",
        Text(),
        "The folder for optimizer states that are kept on NVMe.",
        env="ACCELERATE_DEEPSPEED_OFFLOAD_OPTIMIZER_NVME_PATH",
        ask="In which folder should optimizer states be kept?",
        when=_with("offload_optimizer_device", "nvme"),
    )
    offload_param_nvme_path: str | None = setting(
        "offload_param_nvme_path",
        Text(),
        "The folder for parameters that are kept on NVMe.",
        env="ACCELERATE_DEEPSPEED_OFFLOAD_PARAM_NVME_PATH",
        ask="In which folder should parameters be kept?",
        when=_with("offload_param_device", "nvme"),
    )
    gradient_accumulation_steps: int | None = shared(Settings, "gradient_accumulation_steps", default=None)
    gradient_clipping: float | None = setting(
        "gradient_clipping",
        Number(0.0),
        "DeepSpeed: the norm to which gradients are clipped.",
        env="ACCELERATE_GRADIENT_CLIPPING",
        ask="To which norm should gradients be clipped? (Empty: they are not.)",
    )
    zero3_init_flag: bool | None = setting(
        "zero3_init_flag",
        VALUE,
        "Divide parameters while a model is being built, so that no process holds all of them; ZeRO stage 3.",
        env="ACCELERATE_DEEPSPEED_ZERO3_INIT",
        ask="Should models be divided while they are being built?",
        when=_with("zero_stage", 3),
        suggest=True,
    )
    zero3_save_16bit_model: bool | None = setting(
        "zero3_save_16bit_model",
        VALUE,
        "Gather weights in 16 bits when a model is saved; ZeRO stage 3.",
        env="ACCELERATE_DEEPSPEED_ZERO3_SAVE_16BIT_MODEL",
        ask="Should weights be gathered in 16 bits when a model is saved?",
        when=_with("zero_stage", 3),
        suggest=True,
    )
    moe_layer_cls_names: list[str] | None = setting(
        "deepspeed_moe_layer_cls_names",
        Listing(Text()),
        "The classes of blocks with experts, which ZeRO stage 3 gathers as a whole.",
        env="ACCELERATE_DEEPSPEED_MOE_LAYER_CLS_NAMES",
    )
    multinode_launcher: str | None = setting(
        "deepspeed_multinode_launcher",
        Choice(LAUNCHERS),
        "What starts the processes of several machines: `standard` is torch's launcher, run on each of them; `nossh` "
        "is DeepSpeed's, run on each; the others start all machines from this one. By default pdsh.",
        ask="What should start the processes on the machines?",
        when=_several_machines,
        suggest="pdsh",
    )
    hostfile: str | None = setting(
        "deepspeed_hostfile",
        Text(),
        "The file that lists the machines: `node1 slots=4` on a line each.",
        ask="Which file lists the machines?",
        when=_by_runner,
    )
    inclusion_filter: str | None = setting(
        "deepspeed_inclusion_filter",
        Text(),
        "Use only these machines of the hostfile, or slots of them: `node1@node2:0,2`.",
        ask="Which machines of the file should be used (node1@node2:0,2; empty: all)?",
        when=_by_runner,
    )
    exclusion_filter: str | None = setting(
        "deepspeed_exclusion_filter",
        Text(),
        "Leave out these machines of the hostfile, or slots of them, likewise.",
        ask="Which machines of the file should be left out (empty: none)?",
        when=lambda answers: _by_runner(answers) and not answers.get("deepspeed_inclusion_filter"),
    )
