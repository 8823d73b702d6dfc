"""What a launcher is: it knows which settings are its business, makes a plan of them, and carries the plan out.

A launcher is one file and one line in `registry`. The first that accepts the settings wins.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import ClassVar

from accelerate.launchers.effects import without_effect
from accelerate.launchers.plan import LaunchPlan
from accelerate.launchers.settings import LaunchSettings, declared


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
        return {**self.without_effect, **without_effect(config)}

    def ignored(self, config: LaunchSettings) -> list[str]:
        """Return a sentence for each flag that was given and changes nothing."""
        return [
            f"{config.said(dest)} has no effect: {reason}"
            for dest, reason in self.reasons(config).items()
            if config.is_flag(dest) and config.get(dest) != declared()[dest].default
        ]
