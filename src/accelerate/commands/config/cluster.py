"""The questionnaire about one's own machines. Questions, choices and conditions are those of the Options."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from accelerate.config.cluster import SECTIONS, ClusterConfig
from accelerate.config.enums import ComputeEnvironment, DistributedType
from accelerate.config.option import Option
from accelerate.config.questionnaire import Prompt, ask, file_content, on_terminal


def get_cluster_input(prompt: Prompt | None = None) -> ClusterConfig:
    """Ask for the settings of a launch on one's own machines; the present config file gives the suggestions.

    Args:
        prompt: asks one question; on the terminal by default.
    """
    from accelerate.launchers.read import cluster_config, default_file

    known = cluster_config(default_file({}))
    answers = ask(
        ClusterConfig,
        *SECTIONS.values(),
        answers=known.values() if known is not None else {},
        offer={"compute_environment": [ComputeEnvironment.LOCAL_MACHINE.value], "distributed_type": kinds_of_run()},
        prompt=only_real_questions(prompt or on_terminal),
    )
    return ClusterConfig.from_dict(file_content(answers, ClusterConfig, *SECTIONS.values()), "the answers")


def kinds_of_run() -> list[str]:
    """Return the kinds of run that make sense on this machine."""
    from accelerate.base.environ import current
    from accelerate.launchers.hardware import find_hardware

    hardware = find_hardware(current())
    kinds = [DistributedType.NO, DistributedType.MULTI_CPU]
    return [kind.value for kind in kinds] + ([] if hardware.is_cpu else [hardware.spec.label])


def only_real_questions(prompt: Prompt) -> Prompt:
    """Return `prompt`, except that a question with one possible answer isn't asked."""

    def ask_one(declared: Option, suggestion: Any, offered: Sequence[str] | None) -> Any:
        return offered[0] if offered is not None and len(offered) == 1 else prompt(declared, suggestion, offered)

    return ask_one
