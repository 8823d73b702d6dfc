"""A function as a started process calls it: with its rank first, which becomes what `Accelerator` looks for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from accelerate.base.environ import patch_environment, read
from accelerate.devices.specs import XLA

#: What a forked process is told: its launcher, not the function, ends the process group; and it computes on one
#: thread, since OpenMP hangs after a fork in regions that the parent has run in parallel.
FORKED = {"FORK_LAUNCHED": "1", "OMP_NUM_THREADS": "1"}


class PrepareForLaunch:
    """A function as a process calls it: with its rank first, which becomes what `Accelerator` looks for.

    Args:
        launcher: the function.
        distributed_type: the kind of run; other than XLA and NO, ranks are set from `index`.
        debug: whether the processes meet in a file rather than at a port.
    """

    def __init__(self, launcher: Callable[..., Any], distributed_type: str = "NO", debug: bool = False) -> None:
        self.launcher = launcher
        self.distributed_type = distributed_type
        self.debug = debug

    def __call__(self, index: int, *args: Any) -> None:
        """Call the function with `args` as process `index` of this machine."""
        with patch_environment(**FORKED, **self._ranks(index)):
            compute_on_one_thread()
            self.launcher(*args)

    def _ranks(self, index: int) -> dict[str, str]:
        """Return the variables that hold the ranks; on TPUs its own library knows them."""
        kind = str(getattr(self.distributed_type, "value", self.distributed_type))
        if kind == XLA.label or (kind == "NO" and not self.debug):
            return {}
        here, node = int(read("NPROC", "1") or 1), int(read("NODE_RANK", "0") or 0)
        return {"LOCAL_RANK": str(index), "RANK": str(node * here + index)}


def compute_on_one_thread() -> None:
    """Tell torch what OMP_NUM_THREADS would have told it, had it been imported in this process."""
    import torch

    torch.set_num_threads(1)
