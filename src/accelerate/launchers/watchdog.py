"""Telling a person about a hang: where each process stands, once none of them moves any more.

Processes say so themselves in the folder of the run, see `accelerate.launchers.stall`; a process that waits for one
that computes is no hang.
"""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from accelerate.launchers.console import say
from accelerate.launchers.plan import LaunchPlan
from accelerate.launchers.run_folder import FIRST, LEAVING, READY, STALLED, RunFolder
from accelerate.launchers.stall import VARIABLE


@dataclass(frozen=True)
class Stall:
    """What a process that doesn't move said about itself.

    Args:
        rank: its rank.
        since: since when, in seconds since the epoch.
        collective: what it waits in, if that is a collective.
        stack: what it executes.
    """

    rank: int
    since: float
    collective: str | None
    stack: str


@contextmanager
def watchdog(plan: LaunchPlan, folder: RunFolder) -> Iterator[None]:
    """Report hangs while the processes of a plan run, if that was asked for."""
    seconds = float(plan.env.get(VARIABLE, "0"))
    if not seconds:
        yield
        return
    over = threading.Event()
    thread = threading.Thread(target=_look, args=(folder, seconds, over), daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _look(folder: RunFolder, seconds: float, over: threading.Event) -> None:
    """Look at the folder until the run is over; the same hang is reported once."""
    told: list[Stall] = []
    while not over.wait(min(1.0, seconds / 4)):
        stalls = standing_still(folder)
        if stalls and stalls != told:
            print_report(stalls, seconds)
        told = stalls


def standing_still(folder: RunFolder) -> list[Stall]:
    """Return where each process stands, in the order of ranks; nothing while one moves, or all are being stopped."""
    if (folder.path / FIRST).exists():
        return []
    left = {path.name.removeprefix(LEAVING) for path in folder.path.glob(f"{LEAVING}*")}
    running = {path.name.removeprefix(READY) for path in folder.path.glob(f"{READY}*")} - left
    stalls = []
    for pid in running:
        try:
            stalls.append(Stall(**json.loads((folder.path / f"{STALLED}{pid}").read_text(encoding="utf-8"))))
        except (OSError, ValueError):  # it moves, or it is just being written
            return []
    return sorted(stalls, key=lambda stall: stall.rank)


def print_report(stalls: list[Stall], seconds: float) -> None:
    """Print where the processes stand, first in a line each, then with their stacks."""
    say(f"no process has moved for {seconds:g} s; the run goes on, Ctrl-C ends it")
    for stall in stalls:
        where = f"waits in {stall.collective}" if stall.collective else "waits outside of collectives"
        print(f"  rank {stall.rank} {where}", file=sys.stderr)
    for stall in stalls:
        print(f"rank {stall.rank} stands at (most recent call last):\n{stall.stack}", file=sys.stderr, end="")
    sys.stderr.flush()
