"""Moving batches to a device, by a :class:`Mover` chosen once per loader.

Data loaders make batches on the CPU, so with a CPU run there is nothing to move but in odd cases, and that is found out
by a walk that builds nothing; where the process has no other device, it does not even look at the tensors. To an
accelerator, with `non_blocking`, a batch is copied on a stream of its own while the step before it is computed.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor

from accelerate.comm.tree import leaves, send_to_device
from accelerate.data_loader.marked import Marked

PLAIN = frozenset({str, bytes, int, float, complex, bool, type(None)})


class NoBatch:
    """The class of no batch."""


class Mover:
    """Leaves batches where they are; a subclass moves them.

    `settled` is a class of batches that need no :meth:`arrive`.
    """

    settled: type = NoBatch

    def ahead(self, batches: Iterator[Any]) -> Iterator[Any]:
        """Return the batches, each as it is to be held until it is given out."""
        return batches

    def arrive(self, batch: Any) -> Any:
        """Return a batch as it is given out."""
        return batch


class ToCpu(Mover):
    """Leaves batches alone that are on the CPU: the very same ones are given out.

    Args:
        others: tensors may be on other devices, and have to be asked.
    """

    def __init__(self, others: bool) -> None:
        self.others = others
        self.settled = NoBatch if others else Tensor

    def arrive(self, batch: Any) -> Any:
        data = batch.data if type(batch) is Marked else batch
        return batch if is_settled(data, self.others) else send_to_device(batch, "cpu")


class ToDevice(Mover):
    """Moves batches as they are read.

    Args:
        device: where to.
        non_blocking: do not wait for copies from pinned memory.
    """

    def __init__(self, device: torch.device, non_blocking: bool) -> None:
        self.device = device
        self.non_blocking = non_blocking

    def ahead(self, batches: Iterator[Any]) -> Iterator[Any]:
        return map(partial(send_to_device, device=self.device, non_blocking=self.non_blocking), batches)


class UnderWay:
    """A batch that is being copied.

    Args:
        batch: the batch, already on the device as far as the host is concerned.
        copied: recorded on the stream that copies, when everything is there.
    """

    __slots__ = ("batch", "copied")

    def __init__(self, batch: Any, copied: torch.Event) -> None:
        self.batch = batch
        self.copied = copied


class Overlapped(Mover):
    """Copies a batch on a stream of its own when it is read, and lets the computation wait for it when it is given out.

    Args:
        device: an accelerator that has streams.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def ahead(self, batches: Iterator[Any]) -> Iterator[Any]:
        return map(partial(self._begin, torch.Stream(self.device)), batches)

    def _begin(self, side: torch.Stream, batch: Any) -> Any:
        if not overlaps(batch):
            return send_to_device(batch, self.device, non_blocking=True)
        computing = torch.accelerator.current_stream(self.device)
        torch.accelerator.set_stream(side)
        try:
            return UnderWay(send_to_device(batch, self.device, non_blocking=True), side.record_event())
        finally:
            torch.accelerator.set_stream(computing)

    def arrive(self, batch: Any) -> Any:
        if type(batch) is not UnderWay:
            return batch
        computing = torch.accelerator.current_stream(self.device)
        computing.wait_event(batch.copied)
        for leaf in leaves(contents(batch.batch)):
            if isinstance(leaf, Tensor):  # its memory belongs to the other stream, and is to outlive this one's work
                leaf.record_stream(computing)
        return batch.batch


def mover_to(device: torch.device | str | int | None, non_blocking: bool = False) -> Mover:
    """Return what moves batches to `device`.

    Args:
        device: where to; None leaves batches alone.
        non_blocking: do not wait for copies from pinned memory.
    """
    if device is None:
        return Mover()
    device = torch.device(device)
    if device.type == "cpu":
        return ToCpu(others_exist())
    return Overlapped(device) if non_blocking and has_streams(device) else ToDevice(device, non_blocking)


def others_exist() -> bool:
    """Tell whether tensors of this process may be on another device than the CPU."""
    return torch.accelerator.is_available() or importlib.util.find_spec("torch_xla") is not None


def has_streams(device: torch.device) -> bool:
    """Tell whether copies to a device can go on beside its computation."""
    accelerator = torch.accelerator.current_accelerator()
    if accelerator is None or accelerator.type != device.type:
        return False
    try:
        torch.Stream(device)
    except (RuntimeError, NotImplementedError):
        return False
    return True


def overlaps(batch: Any) -> bool:
    """Tell whether a batch may be copied on another stream: its tensors are known, and ready on the CPU."""
    for leaf in leaves(contents(batch)):
        if isinstance(leaf, Tensor):
            if not leaf.is_cpu:
                return False
        elif type(leaf) not in PLAIN and hasattr(leaf, "to"):
            return False
    return True


def contents(batch: Any) -> Any:
    """Return a batch without its mark."""
    return batch.data if type(batch) is Marked else batch


def is_settled(data: Any, look: bool) -> bool:
    """Tell whether nested data is known to need no move to the CPU; objects of other kinds are not known.

    Args:
        data: nested data.
        look: ask tensors where they are; a cold look at each costs more than the rest of the walk.
    """
    kind = type(data)
    if kind is dict:
        data = data.values()
    elif kind is Tensor:
        return not look or data.is_cpu
    elif kind is not list and kind is not tuple:
        if kind in PLAIN:
            return True
        if isinstance(data, Mapping):
            data = data.values()
        elif not isinstance(data, (tuple, list)):
            return False
    for value in data:
        if type(value) is Tensor:
            if look and not value.is_cpu:
                return False
        elif not is_settled(value, look):
            return False
    return True
