"""The questionnaire about one's own machines. Questions, choices and conditions are those of the Options."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from accelerate.base.environ import current
from accelerate.config.cluster import SECTIONS, ClusterConfig
from accelerate.config.enums import ComputeEnvironment, DistributedType
from accelerate.config.option import Option
from accelerate.config.questionnaire import Prompt, ask, file_content, on_terminal

if TYPE_CHECKING:
    from accelerate.launchers.hardware import Hardware

#: The kinds of run that every machine has.
ON_CPU = (DistributedType.NO, DistributedType.MULTI_CPU)
#: The kinds of run that need a package.
BY_PACKAGE = {"deepspeed": DistributedType.DEEPSPEED, "torch_xla": DistributedType.XLA}
#: Questions, by `dest`, that only a machine with accelerators raises.
ABOUT_ACCELERATORS = ("cpu", "gpu_ids", "enable_cpu_affinity")


def get_cluster_input(prompt: Prompt | None = None) -> ClusterConfig:
    """Ask for the settings of a launch on one's own machines; the present config file gives the suggestions.

    Args:
        prompt: asks one question; on the terminal by default.
    """
    from accelerate.launchers.hardware import find_hardware
    from accelerate.launchers.read import cluster_config, default_file

    known = cluster_config(default_file({}))
    hardware = find_hardware(current())
    offer: dict[str, list[str]] = {
        "compute_environment": [ComputeEnvironment.LOCAL_MACHINE.value],
        "distributed_type": kinds_of_run(hardware),
    }
    if hardware.is_cpu:  # no accelerator: nothing to choose among them
        offer.update({dest: [] for dest in ABOUT_ACCELERATORS})
    answers = ask(
        ClusterConfig,
        *SECTIONS.values(),
        answers=known.values() if known is not None else {},
        offer=offer,
        prompt=only_real_questions(prompt or on_terminal),
    )
    return ClusterConfig.from_dict(file_content(answers, ClusterConfig, *SECTIONS.values()), "the answers")


def kinds_of_run(hardware: Hardware) -> list[str]:
    """Return the kinds of run that make sense on a machine, with what is installed on it."""
    devices = [] if hardware.is_cpu else [hardware.spec.label]
    installed = [kind.value for package, kind in BY_PACKAGE.items() if importlib.util.find_spec(package) is not None]
    return [*(kind.value for kind in ON_CPU), *devices, DistributedType.FSDP.value, *installed]


def only_real_questions(prompt: Prompt) -> Prompt:
    """Return `prompt`, except that a question with one possible answer, or none, isn't asked."""

    def ask_one(declared: Option, suggestion: Any, offered: Sequence[str] | None) -> Any:
        if offered is not None and len(offered) < 2:
            return next(iter(offered), None)
        return prompt(declared, suggestion, offered)

    return ask_one
