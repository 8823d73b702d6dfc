"""Carrying out a plan whose processes call a function: through torch's elastic agent, which gets to know what failed.

The first process that fails writes its traceback into the folder of the run; its peers lose their peer, and fail after
it.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from accelerate.base.environ import patch_environment, read
from accelerate.launchers.plan import LaunchPlan
from accelerate.launchers.prepared import compute_on_one_thread
from accelerate.launchers.run_folder import RunFolder
from accelerate.launchers.worker import claim

#: Where the first process that fails writes its traceback.
TRACE = "trace"


def run_plan(
    plan: LaunchPlan, function: Callable[..., Any], args: tuple[Any, ...], *, start_method: str, **settings: Any
) -> None:
    """Carry out a plan whose processes call a function: through torch's elastic agent.

    Args:
        plan: how many processes there are, and what their variables are.
        function: what each calls.
        args: with what.
        start_method: "fork" or "spawn".
        settings: of torch's `LaunchConfig`.

    Raises:
        RuntimeError: a process failed.
    """
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    from accelerate.launchers.elastic import quiet_torch

    config = LaunchConfig(
        min_nodes=plan.num_machines,
        max_nodes=plan.num_machines,
        nproc_per_node=plan.processes_here,
        start_method=start_method,
        **settings,
    )
    with RunFolder() as folder, patch_environment(**plan.env), quiet_torch():
        try:
            elastic_launch(config, Recorded(function, folder.path))(*args)
        except ChildFailedError as error:
            raise RuntimeError(_failure(plan, error, folder.path / TRACE)) from None


class Recorded:
    """A function whose exception torch's agent gets to know, with the traceback.

    Args:
        function: what to call.
        folder: where the first process that fails says so; its peers lose their peer, and fail after it.
    """

    def __init__(self, function: Callable[..., Any], folder: Path) -> None:
        self.function = function
        self.folder = folder
        self.__qualname__ = self.__name__ = getattr(function, "__name__", repr(function))

    def __call__(self, *args: Any) -> None:
        """Call the function; what it returns stays in the process."""
        from torch.distributed.elastic.multiprocessing.errors import record

        if read("FORK_LAUNCHED"):
            compute_on_one_thread()
        record(self._call)(*args)

    def _call(self, *args: Any) -> None:
        try:
            self.function(*args)
        except BaseException as error:
            if claim(self.folder, error):
                told = f"rank {read('RANK')} raised {type(error).__name__}"
                (self.folder / TRACE).write_text(f"{told}\n{traceback.format_exc()}", encoding="utf-8")
            raise


def _failure(plan: LaunchPlan, error: Any, trace: Path) -> str:
    """Return what to say of the first process that failed: its traceback, or how it ended if it couldn't say."""
    given = f"`{plan.script}` failed on {plan.num_processes} processes"
    if trace.is_file():
        return f"{given}: {trace.read_text(encoding='utf-8').rstrip()}"
    rank, first = error.get_first_failure()
    how = f"exit code {first.exitcode}" if first.exitcode >= 0 else f"signal {-first.exitcode}"
    return f"{given}: rank {rank} ended with {how}"
