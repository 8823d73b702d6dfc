"""A finding of a check, and what checks are told about the run that is planned."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from accelerate.launchers.settings import LaunchSettings


class Status(str, Enum):
    """How a check ended."""

    OK = "ok"
    WARNING = "warning"
    FAILURE = "failure"


@dataclass(frozen=True)
class Finding:
    """One line of the report.

    Args:
        status: whether a run would fail of it.
        text: what was found.
        do: what to do about it; empty when all is well.
    """

    status: Status
    text: str
    do: str = ""


@dataclass(frozen=True)
class Visit:
    """What is examined.

    Args:
        settings: the settings that a launch with the same flags would have.
        folder: where checkpoints would be written.
        patience: for how many seconds other machines are waited for.
        unread: why the config file can't be read; the settings are those of the flags, then.
    """

    settings: LaunchSettings
    folder: Path
    patience: float = 30.0
    unread: Exception | None = None


Check = Callable[[Visit], Iterable[Finding]]


def ok(text: str) -> Finding:
    """Return a finding that needs nothing."""
    return Finding(Status.OK, text)


def warning(text: str, do: str) -> Finding:
    """Return a finding that a run may suffer from."""
    return Finding(Status.WARNING, text, do)


def failure(text: str, do: str) -> Finding:
    """Return a finding that a run would fail of."""
    return Finding(Status.FAILURE, text, do)
