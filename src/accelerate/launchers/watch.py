"""Watching the processes of one machine: who ended first and how, and stopping the others.

A thread waits for each process, so that the order in which they end is known and the others are told to stop at
once, rather than at the agent's next look. Each process leads a session of its own; signals go to the whole
session, so that the workers of data loaders end too.
"""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass

from accelerate.launchers.run_folder import RunFolder

#: Seconds between the request to stop and the end by force: after a failure, and after Ctrl-C.
FAILURE_GRACE = 3.0
INTERRUPT_GRACE = 5.0
#: How long after a process was killed the exceptions of its peers may come to be known before it, in seconds.
SIGNAL_LEAD = 0.1


@dataclass(frozen=True)
class Ending:
    """How a process ended.

    Args:
        rank: its global rank.
        pid: its process.
        code: exit code, or minus the signal.
        time: when, in seconds since the epoch.
        error: its exception, in a line; empty when it isn't known.
    """

    rank: int
    pid: int
    code: int
    time: float = 0.0
    error: str = ""

    @property
    def exit_code(self) -> int:
        """The code as a shell counts: 128 plus the signal's number."""
        return exit_code(self.code)

    def __str__(self) -> str:
        text = f"ended with exit code {self.code}"
        if self.code < 0:
            text = f"was killed by signal {-self.code} ({signal_name(-self.code)})"
            if -self.code == getattr(signal, "SIGKILL", None):
                text += ", as the system does when memory runs out"
        return f"{text}: {self.error}" if self.error else text


def exit_code(code: int) -> int:
    """Return the code of `subprocess` as a shell counts."""
    return code if code >= 0 else 128 - code


def signal_name(number: int) -> str:
    """Return SIGTERM for 15, and so on."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return "unknown"


class Watch:
    """The processes of one attempt.

    Args:
        processes: by global rank; each leads its own session.
        folder: where they report.
    """

    def __init__(self, processes: Mapping[int, subprocess.Popen[bytes]], folder: RunFolder) -> None:
        self.processes = dict(processes)
        self.folder = folder
        self.endings: list[Ending] = []
        self.stopped_at: float | None = None
        self._is_over = False
        self._lock = threading.Lock()
        self._threads = [threading.Thread(target=self._wait, args=item, daemon=True) for item in self.processes.items()]
        for thread in self._threads:
            thread.start()

    def _wait(self, rank: int, process: subprocess.Popen[bytes]) -> None:
        """Note how one process ends; after a failure, ask the others to stop."""
        code = process.wait()
        with self._lock:
            self.endings.append(Ending(rank, process.pid, code, time.time()))
            first = code != 0 and self.stopped_at is None
            if first:
                self.stopped_at = time.time()
        if first:
            self.folder.hush()
            self.send_all(signal.SIGTERM)

    def stop(self, number: int | None, grace: float) -> None:
        """End what still runs: by signal `number`, after `grace` seconds by force; then whatever their sessions left.

        Processes that would answer Ctrl-C with a traceback get SIGTERM instead.
        """
        if self._is_over or (not self.alive and all(one.returncode == 0 for one in self.processes.values())):
            return
        self._is_over = True
        if number is not None:
            self.stopped_at = self.stopped_at or time.time()
            self.folder.hush()
        try:
            self.send_all(signal.SIGTERM if number is None else number)
            self._join(grace)
        finally:
            self._kill()

    def root(self) -> Ending | None:
        """Return the failure that came first, or None if no process failed by itself."""
        failures = [ending for ending in self.endings if ending.code != 0]
        if not failures:
            return None
        claim = self.folder.claim()
        own = [one for one in failures if not self._was_ended(one) or (claim is not None and claim.pid == one.pid)]
        first = min(own or failures, key=self._began)
        if claim is None or claim.pid != first.pid:
            return first
        # An exception means 1, also when the process didn't get to say so because it was asked to hurry.
        return dataclasses.replace(first, code=1 if self._was_ended(first) else first.code, error=claim.error)

    def _was_ended(self, ending: Ending) -> bool:
        """Whether the launcher ended a process, which may have been leaving by itself, but too slowly."""
        asked = self.stopped_at is not None and ending.time > self.stopped_at
        return asked and ending.code in (-signal.SIGTERM, -signal.SIGKILL)

    def _began(self, ending: Ending) -> float:
        """Return when a process began to end.

        A peer of a killed process may notice before the launcher does; but nobody dies of a signal because a peer
        has an exception, so the signal gets a head start, unless it was sent by the launcher.
        """
        asked = self.stopped_at is not None and ending.time > self.stopped_at
        lead = SIGNAL_LEAD if ending.code < 0 and not asked else 0.0
        return min(ending.time - lead, self.folder.left(ending.pid) or ending.time)

    @property
    def alive(self) -> list[subprocess.Popen[bytes]]:
        """The processes that still run."""
        return [process for process in self.processes.values() if process.poll() is None]

    def send_all(self, number: int) -> None:
        """Send a signal to the sessions that still have their leader, and whose leader isn't ending already."""
        for process in self.alive:
            if self.folder.left(process.pid) is not None:
                continue
            quiet = number != signal.SIGINT or self.folder.is_ready(process.pid)
            send(process.pid, number if quiet else signal.SIGTERM)

    def _join(self, grace: float) -> None:
        """Wait until all have ended, at most `grace` seconds."""
        end = time.monotonic() + grace
        for thread in self._threads:
            thread.join(max(end - time.monotonic(), 0.0))

    def _kill(self) -> None:
        """End by force what is left of every session, and take note of it."""
        for process in self.processes.values():
            send(process.pid, signal.SIGKILL)
        self._join(1.0)


def send(pid: int, number: int) -> None:
    """Send a signal to the session that `pid` leads; nothing happens when it has no process left."""
    with suppress(ProcessLookupError, PermissionError):  # PermissionError: macOS, for a session of zombies
        os.killpg(pid, number)
