"""Say how far the reading of a checkpoint is: a line in the log per file, and a bar in a terminal if it takes long."""

from __future__ import annotations

import logging
import math
import os
import sys
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

import torch

from accelerate.base.environ import read
from accelerate.big_modeling.checkpoint_file import CheckpointFile
from accelerate.big_modeling.units import readable

logger = logging.getLogger("accelerate.big_modeling")

#: Seconds after which it is worth showing a bar.
LONG = 2.0

#: A tensor to read: its file, its name there, and where it goes.
Job = tuple[CheckpointFile, str, torch.Tensor]


class Progress:
    """How much of some tensors has been read; to be used as a context, in one thread.

    Args:
        jobs: the tensors.
    """

    def __init__(self, jobs: Sequence[Job]) -> None:
        self._left = Counter(file.path for file, _, _ in jobs)
        self._num_files = len(self._left)
        self._files_done = 0
        self._total = sum(_size(job) for job in jobs)
        self._read = 0
        self._show_at = time.monotonic() + LONG
        #: The bar, and what it calls its one line; None before there is one.
        self._bar: tuple[Any, Any] | None = None

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *error: object) -> None:
        if self._bar is not None:
            self._bar[0].stop()

    def done(self, job: Job) -> None:
        """Take note that a tensor has been read."""
        path = job[0].path
        self._read += _size(job)
        self._left[path] -= 1
        if not self._left[path]:
            self._files_done += 1
            logger.info(f"Read {os.path.basename(path)}: {self._so_far()}, {readable(self._read)} of {self._all()}")
        if self._bar is not None or (time.monotonic() > self._show_at and _is_shown()):
            self._show()

    def _so_far(self) -> str:
        return f"{self._files_done} of {self._num_files} files"

    def _all(self) -> str:
        return readable(self._total)

    def _show(self) -> None:
        if self._bar is None:
            self._bar = _started(self._total)
        progress, task = self._bar
        progress.update(task, completed=self._read, files=self._so_far())


def _is_shown() -> bool:
    """Return whether there is a terminal to show a bar in, and this is the process to do so."""
    return sys.stderr.isatty() and read("LOCAL_RANK", "0") == "0"


def _started(total: int) -> tuple[Any, Any]:
    from rich import progress
    from rich.console import Console

    columns = (
        progress.TextColumn("Loading"),
        progress.BarColumn(),
        progress.DownloadColumn(binary_units=True),
        progress.TextColumn("{task.fields[files]}"),
        progress.TimeRemainingColumn(),
    )
    bar = progress.Progress(*columns, console=Console(stderr=True))
    bar.start()
    return bar, bar.add_task("", total=total, files="")


def _size(job: Job) -> int:
    file, name, _ = job
    return math.prod(file.shape(name)) * file.dtype(name).itemsize
