"""Saving while training goes on: take a snapshot, let another thread write it, and never lose sight of it.

The snapshot is torch.distributed.checkpoint's: storages are copied into host memory (pinned where there is CUDA) which
is kept for the next save. The ranks talk over a process group of their own, so that nothing gets between the
collectives of training. What goes wrong is raised by the next call that has to do with checkpoints, or at the end of
the process, which waits for the writer and then leaves with an error.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
import traceback
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from accelerate.base.messages import message, warn_once
from accelerate.checkpointing.durable import beside_training
from accelerate.checkpointing.save import Job
from accelerate.comm.collectives import Alone, Collectives, TorchCollectives

EXIT_CODE = 1  #: of a process whose last save in the background failed


class Background:
    """The one save that may be under way beside training."""

    def __init__(self) -> None:
        self._stager: Any = None
        self._collectives: Collectives | None = None
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None
        self._hurry = threading.Event()  #: somebody waits for the writer
        self._trains = 0  #: the thread that training runs on, as the system numbers it

    def collectives(self, foreground: Collectives) -> Collectives | None:
        """Return the wire for a save beside training; None when this kind of run has none."""
        if isinstance(foreground, Alone):
            return foreground
        if not isinstance(foreground, TorchCollectives):
            warn_once("blocking=False has no effect: on this kind of device only one thread can talk to other ranks.")
            return None
        if self._collectives is None:
            group = torch.distributed.new_group(backend="gloo")
            self._collectives = TorchCollectives("cpu", group)
        return self._collectives

    def snapshot(self, state: Any) -> Any:
        """Return a copy of nested data in host memory; the memory of the last copy is used again."""
        if self._stager is None:
            self._stager = new_stager()
        return self._stager.stage(state)

    def start(self, job: Job) -> None:
        """Run `job` on another thread."""
        self.wait()
        atexit.unregister(self._leave)
        atexit.register(self._leave)
        # Not a daemon: the interpreter waits for it before it ends.
        self._trains = threading.get_native_id()
        self._hurry = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(job,), name="accelerate-checkpoint")
        self._thread.start()

    def _run(self, job: Job) -> None:
        step_aside(self._trains)
        try:
            with beside_training(self._hurry):
                job.run()
        except BaseException as error:
            self._error = error

    def wait(self) -> None:
        """Return when the save that is under way is committed.

        Raises:
            RuntimeError: it failed; its cause is what the writer met.
        """
        if self._thread is not None:
            self._hurry.set()
            self._thread.join()
            self._thread = None
        error, self._error = self._error, None
        if error is not None:
            raise RuntimeError(_failed(error)) from error

    def close(self) -> None:
        """Wait, and give the memory of the snapshot back.

        Raises:
            RuntimeError: the save that was under way failed.
        """
        try:
            self.wait()
        finally:
            if self._stager is not None:
                self._stager.close()
                self._stager = None
            self._collectives = None

    def _leave(self) -> None:
        """At the end of the process, see to it that a failed save doesn't go unnoticed."""
        try:
            self.wait()
        except RuntimeError:
            traceback.print_exc()
            atexit.unregister(self._leave)
            atexit._run_exitfuncs()  # everybody else's, which leaving in this way would skip
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(EXIT_CODE)


def step_aside(other: int) -> None:
    """Let the thread `other` of this process come first, as far as the system lets this one say so.

    This thread takes less of a core that both want, and stays off the core that `other` is on: it would get there
    whenever a disk has answered, and `other` would wait.
    """
    mine = threading.get_native_id()
    if hasattr(os, "setpriority"):
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, mine, 10)
    if hasattr(os, "sched_setaffinity"):
        with suppress(OSError):
            cores = os.sched_getaffinity(mine) - {_core_of(other)}
            if cores:
                os.sched_setaffinity(mine, cores)


def _core_of(thread: int) -> int:
    """Return the core that a thread of this process runs on; Linux says so behind its name and 36 other fields."""
    return int(Path(f"/proc/self/task/{thread}/stat").read_text().rpartition(")")[2].split()[36])


def new_stager() -> Any:
    """Return torch's own stager, for this kind of machine.

    Raises:
        ImportError: torch is too old to have one.
    """
    try:
        from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions
    except ImportError as error:
        raise ImportError(
            message(
                given=f"blocking=False with torch {torch.__version__}",
                why="saving in the background takes its snapshot with torch.distributed.checkpoint's DefaultStager",
                allowed="torch 2.9 or later for blocking=False; any supported torch for blocking=True",
                do="upgrade torch, or leave blocking=False out",
            )
        ) from error
    cuda = torch.cuda.is_available()
    return DefaultStager(
        StagingOptions(
            use_pinned_memory=cuda,
            use_shared_memory=False,  # the writer is a thread of this process
            use_async_staging=False,
            use_non_blocking_copy=cuda,
        )
    )


def _failed(error: BaseException) -> str:
    return message(
        given="the latest save_state(blocking=False)",
        why=f"it failed while it was written: {type(error).__name__}: {error}",
        allowed="the checkpoints that were committed before it are as they were",
        do="see the cause above, make room or mend it, and save again",
    )
