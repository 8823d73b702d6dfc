"""The folder through which the processes of a launch report to the launcher: who failed first, and who can take Ctrl-C.

It lives as long as the launch, and its path travels in a variable. `ready-PID` says that a process keeps quiet
about Ctrl-C; `leaving-PID` when it began to end, well before it is gone; `stalled-PID` that it doesn't move; `first`
is created by the first process that fails with an exception, and only by that one, so that one traceback is printed
and no more. The other side is `accelerate.launchers.worker`.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

VARIABLE = "ACCELERATE_RUN_FOLDER"
FIRST = "first"
READY = "ready-"
LEAVING = "leaving-"
STALLED = "stalled-"


@dataclass(frozen=True)
class Claim:
    """What the first process that failed with an exception said about itself.

    Args:
        pid: its process.
        error: the last line of its traceback.
    """

    pid: int
    error: str


def launcher_of(path: Path) -> int:
    """Return the process whose folder this is."""
    return int(path.name.split("-")[1])


class RunFolder:
    """The launcher's view of the folder; a context manager that removes it at the end."""

    def __init__(self) -> None:
        import tempfile

        self.path = Path(tempfile.mkdtemp(prefix=f"accelerate-{os.getpid()}-"))

    def __enter__(self) -> RunFolder:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        import shutil

        shutil.rmtree(self.path, ignore_errors=True)

    @property
    def env(self) -> dict[str, str]:
        """The variable that tells processes where to report."""
        return {VARIABLE: str(self.path)}

    def forget(self) -> None:
        """Make room for another attempt."""
        for path in (
            self.path / FIRST,
            *(path for kind in (READY, LEAVING, STALLED) for path in self.path.glob(f"{kind}*")),
        ):
            path.unlink(missing_ok=True)

    def claim(self) -> Claim | None:
        """Return what the first failing process wrote, or None."""
        try:
            return Claim(**json.loads((self.path / FIRST).read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError):  # not there, or half written by a process that was killed at it
            return None

    def hush(self) -> None:
        """Keep processes from reporting errors which the launcher causes by stopping them."""
        (self.path / FIRST).touch()

    def left(self, pid: int) -> float | None:
        """Return when a process began to end, in seconds since the epoch, or None if it hasn't said so."""
        try:
            return float((self.path / f"{LEAVING}{pid}").read_text())
        except (OSError, ValueError):
            return None

    def is_ready(self, pid: int) -> bool:
        """Whether a process takes Ctrl-C without printing a traceback."""
        return (self.path / f"{READY}{pid}").exists()
