"""What is real in a step, carried by the batch itself through collate functions, worker processes and pinning."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils.data._utils.pin_memory import pin_memory

from accelerate.comm.tree import send_to_device
from accelerate.data_loader.dealing import Tail


class Marked:
    """A sample or a batch, and what is real in the step it belongs to.

    Args:
        data: the sample or batch.
        tail: what is real in its step.
    """

    __slots__ = ("data", "tail")

    def __init__(self, data: Any, tail: Tail) -> None:
        self.data = data
        self.tail = tail

    def to(self, device: torch.device | str, non_blocking: bool = False) -> Marked:
        """Return the same mark on the data moved to `device`."""
        return Marked(send_to_device(self.data, device, non_blocking=non_blocking), self.tail)

    def pin_memory(self, device: str | None = None) -> Marked:
        """Return the same mark on the data in pinned memory."""
        return Marked(pin_memory(self.data, device), self.tail)


class MarkingCollate:
    """A collate function that takes the marks off samples and puts one on their batch.

    Args:
        collate: the user's collate function.
    """

    def __init__(self, collate: Callable[[Any], Any]) -> None:
        self.collate = collate

    def __call__(self, samples: Any) -> Any:
        if type(samples) is Marked:  # no automatic batching: a sample is a batch
            return Marked(self.collate(samples.data), samples.tail)
        if type(samples) is list and samples and type(samples[-1]) is Marked:
            unmarked = [each.data if type(each) is Marked else each for each in samples]
            return Marked(self.collate(unmarked), samples[-1].tail)
        return self.collate(samples)
