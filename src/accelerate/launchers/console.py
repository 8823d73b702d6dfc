"""What a launch says to the person in front of it: on stderr, a line at a time, with its name before it."""

from __future__ import annotations

import sys

from accelerate.launchers.plan import LaunchPlan
from accelerate.launchers.watch import Ending


def say(text: str) -> None:
    """Print one line about the launch."""
    print(f"accelerate launch: {text}", file=sys.stderr, flush=True)


def say_failure(plan: LaunchPlan, ending: Ending) -> None:
    """Say which process of several failed, where and how."""
    others = plan.processes_here - 1
    stopped = {0: "", 1: "; the other process was stopped"}.get(others, f"; the other {others} processes were stopped")
    say(f"{who(plan, ending)} {ending}{stopped}")


def who(plan: LaunchPlan, ending: Ending) -> str:
    """Return how to call a process of a plan: its script, or its rank and host when there are several."""
    if plan.num_processes == 1:
        return plan.script
    import socket

    return f"rank {ending.rank} of {plan.num_processes} on host {socket.gethostname()} (process {ending.pid})"
