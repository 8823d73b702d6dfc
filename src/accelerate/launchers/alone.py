"""Running one process: it has the terminal, gets our signals, and its exit code is the launcher's."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from accelerate.launchers.console import say
from accelerate.launchers.plan import LaunchPlan
from accelerate.launchers.run_folder import RunFolder
from accelerate.launchers.watch import Ending, exit_code
from accelerate.launchers.watchdog import watchdog

#: Signals that ask a program to end; SIGINT is Ctrl-C.
ENDING_SIGNALS = ("SIGINT", "SIGTERM", "SIGHUP")
#: Signals by which batch systems tell a program something, which is not for the launcher to die of.
USER_SIGNALS = ("SIGUSR1", "SIGUSR2")

Handler = Callable[[int, FrameType | None], None]


def run(plan: LaunchPlan) -> int:
    """Run the process of a plan and return its exit code.

    Raises:
        KeyboardInterrupt: Ctrl-C ended it.
    """
    received: list[int] = []
    with RunFolder() as folder:
        child = subprocess.Popen(plan.argv, env={**os.environ, **plan.env, **folder.env})
        with signals_handled(lambda number, frame: pass_on(child, number, received)), watchdog(plan, folder):
            code = child.wait()
        claim = folder.claim()
    if code and signal.SIGINT in received:
        raise KeyboardInterrupt
    if code and not received:
        say(f"{plan.script} {Ending(0, child.pid, code, error=claim.error if claim else '')}")
    return exit_code(code)


def pass_on(child: subprocess.Popen[bytes], number: int, received: list[int]) -> None:
    """Hand a signal on to the process; the second Ctrl-C ends it by force."""
    if signal.Signals(number).name in USER_SIGNALS:
        child.send_signal(number)
        return
    again = number == signal.SIGINT and number in received
    received.append(number)
    if again:
        child.kill()
    elif number != signal.SIGINT or not _terminal_told_both():
        child.send_signal(number)


def _terminal_told_both() -> bool:
    """Whether Ctrl-C at the terminal reaches the process without our help: it is in the group at the front."""
    try:
        return os.tcgetpgrp(sys.__stdin__.fileno()) == os.getpgrp() if sys.__stdin__ else False
    except (OSError, ValueError):
        return False


@contextmanager
def signals_handled(handler: Handler | None) -> Iterator[None]:
    """Give signals that a program can answer to `handler` inside the block, and put back what was there before.

    Without a handler, only put back what the block changes. Threads other than the main one can't set handlers.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handled = [getattr(signal, name) for name in (*ENDING_SIGNALS, *USER_SIGNALS) if hasattr(signal, name)]
    numbers = [*handled, *([signal.SIGQUIT] if hasattr(signal, "SIGQUIT") else [])]
    before = {number: signal.getsignal(number) for number in numbers}
    for number in handled if handler is not None else []:
        signal.signal(number, handler)
    try:
        yield
    finally:
        for number, previous in before.items():
            signal.signal(number, previous)
