"""What a launcher is: it knows which settings are its business, makes a plan of them, and carries the plan out.

A launcher is one file and one line in `registry`. The first that accepts the settings wins.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import ClassVar

from accelerate.config.deepspeed import GROUP, DeepSpeedSettings
from accelerate.config.fsdp import FullyShardedDataParallelPlugin
from accelerate.config.option import options
from accelerate.launchers.plan import LaunchPlan
from accelerate.launchers.settings import LaunchSettings, declared

#: Flags, by `dest`, that are about jobs on SageMaker alone.
OF_JOBS = ("aws_access_key_id", "aws_secret_access_key")

#: Settings that only DeepSpeed's own runner reads.
OF_RUNNER = (
    "deepspeed_multinode_launcher", "deepspeed_hostfile", "deepspeed_inclusion_filter", "deepspeed_exclusion_filter",
)  # fmt: skip


class Launcher(ABC):
    """One way of starting the processes of a run."""

    #: How a plan and messages call it.
    name: ClassVar[str]
    #: Settings, by `dest`, that change nothing when this launcher starts the run, each with the reason.
    without_effect: ClassVar[Mapping[str, str]] = {}

    @abstractmethod
    def accepts(self, config: LaunchSettings) -> bool:
        """Return whether it can launch these settings."""

    @abstractmethod
    def plan(self, config: LaunchSettings) -> LaunchPlan:
        """Return what would be started; nothing is touched."""

    def run(self, plan: LaunchPlan) -> int:
        """Start what the plan says, wait for its end, and return the exit code: 0, or that of the first failure.

        A process that a signal has ended counts as 128 plus the signal's number, as in a shell. Here the plan is one
        command, which gets the terminal.
        """
        from accelerate.launchers.alone import run

        return run(plan)

    def reasons(self, config: LaunchSettings) -> dict[str, str]:
        """Return why settings, by `dest`, change nothing in this run."""
        reasons = dict(self.without_effect)
        if not config.uses_fsdp:
            fsdp = options(FullyShardedDataParallelPlugin).values()
            reasons.update((one.dest, "parameters are sharded with --use_fsdp only") for one in fsdp)
        if config.job is None:
            reasons.update(dict.fromkeys(OF_JOBS, "the config file isn't one of jobs on SageMaker"))
        deepspeed = [one.dest for one in options(DeepSpeedSettings).values() if one.group == GROUP]
        if not config.uses_deepspeed:
            reasons.update(dict.fromkeys(deepspeed, "DeepSpeed trains with --use_deepspeed only"))
        elif config.deepspeed_runner is None:
            of_runner = [dest for dest in OF_RUNNER if config.get(dest) != "standard"]
            reasons.update(dict.fromkeys(of_runner, "torch's launcher starts the processes"))
        return reasons

    def ignored(self, config: LaunchSettings) -> list[str]:
        """Return a sentence for each flag that was given and changes nothing."""
        return [
            f"{config.said(dest)} has no effect: {reason}"
            for dest, reason in self.reasons(config).items()
            if config.is_flag(dest) and config.get(dest) != declared()[dest].default
        ]
