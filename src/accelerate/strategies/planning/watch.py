"""Watches tensor operations: which storages are alive, and which messages are sent.

It looks at tensors without values (`FakeTensorMode`), whose storages have sizes all the same. Storages that are freed
by resizing them, as those of gathered parameters are, count as long as they have a size.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch.distributed import ProcessGroup
from torch.distributed.tensor import DTensor
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from accelerate.base.messages import warn_once
from accelerate.checkpointing.tensors import local_of
from accelerate.strategies.planning.traffic import EXCHANGE, GATHER, REDUCE, SCATTER, Messages, combined

#: Operations that send: the kind of message, which argument has the whole tensor, which one is the group, and whether
#: the argument is the part of one rank.
SENDING: Mapping[str, tuple[str, int, int, bool]] = {
    "c10d::_allgather_base_": (GATHER, 0, 2, False),
    "c10d::_reduce_scatter_base_": (SCATTER, 1, 2, False),
    "c10d::allreduce_": (REDUCE, 0, 1, False),
    "_c10d_functional::all_gather_into_tensor": (GATHER, 0, 2, True),
    "_c10d_functional::reduce_scatter_tensor": (SCATTER, 0, 3, False),
    "_c10d_functional::all_reduce": (REDUCE, 0, 2, False),
    "_c10d_functional::all_to_all_single": (EXCHANGE, 0, 3, False),
}
#: Collectives that only wait or mark.
SILENT = frozenset({"_c10d_functional::wait_tensor", "_c10d_functional::_wrap_tensor_autograd"})


class Watch(TorchDispatchMode):
    """Counts while it is entered.

    Args:
        axes: the axis and the size of a process group, by a kind of message and the group's name.
    """

    def __init__(self, axes: Mapping[tuple[str, str], tuple[str, int]]) -> None:
        super().__init__()
        self.axes = axes
        self.alive = self.peak = 0
        self.sent: list[Messages] = []
        self._known: dict[int, int] = {}

    @property
    def messages(self) -> tuple[Messages, ...]:
        """What was sent, one entry for each kind and axis."""
        return tuple(combined(self.sent))

    def __torch_dispatch__(
        self, func: Any, types: Iterable[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if any(issubclass(each, DTensor) for each in types):
            return NotImplemented  # what a DTensor does is seen as operations on its local tensor
        found = func(*args, **(kwargs or {}))
        if func.namespace in ("c10d", "_c10d_functional"):
            self._send(func.name(), args)
        self.note(found)
        return found

    def _send(self, name: str, args: tuple[Any, ...]) -> None:
        if name in SILENT:
            return
        if name not in SENDING:
            warn_once(f"{name} is not counted: the simulation knows what FSDP, tensor and context parallel send.")
            return
        kind, place, group, is_part = SENDING[name]
        whole = args[place][0] if isinstance(args[place], list) else args[place]
        axis, ranks = self.axes[kind, _name_of(args[group])]
        size = whole.numel() * whole.element_size() * (ranks if is_part else 1)
        self.sent.append(Messages(kind, axis, ranks, size))

    def note(self, data: Any) -> None:
        """Count the storages of the tensors in `data`, unless they are counted."""
        for each in pytree.tree_leaves(data):
            if isinstance(each, torch.Tensor):
                storage = local_of(each).untyped_storage()
                if storage._cdata not in self._known:
                    self._known[storage._cdata] = 0
                    weakref.finalize(storage, self._forget, storage._cdata)
                self._resize(storage._cdata, storage.nbytes())

    def _resize(self, key: int, size: int) -> None:
        self.alive += size - self._known[key]
        self._known[key] = size
        self.peak = max(self.peak, self.alive)

    def _forget(self, key: int) -> None:
        self.alive -= self._known.pop(key)

    @contextmanager
    def resizing(self) -> Iterator[None]:
        """See storages that are resized in the body."""
        resize = torch.UntypedStorage.resize_

        def resized(storage: torch.UntypedStorage, size: int) -> Any:
            found = resize(storage, size)
            if storage._cdata in self._known:
                self._resize(storage._cdata, size)
            return found

        torch.UntypedStorage.resize_ = resized  # type: ignore[method-assign, assignment]
        try:
            yield
        finally:
            torch.UntypedStorage.resize_ = resize  # type: ignore[method-assign]


def _name_of(group: Any) -> str:
    """Return the name of a group, which some operations take by its name."""
    return group if isinstance(group, str) else str(ProcessGroup.unbox(group).group_name)
