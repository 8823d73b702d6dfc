"""Copies to an accelerator that go on while it computes, in the terms of torch's device modules.

`Side` copies on a stream of its own; what computes waits for an event, on the device and not on the host. `Plain` is
for devices without streams: the copy has ended when it returns.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import torch


class Copies(ABC):
    """How tensors of the host get to one device."""

    #: Whether host memory is to be page-locked for that.
    pinned = False

    @abstractmethod
    def start(self, tensors: Sequence[torch.Tensor], dtypes: Sequence[torch.dtype]) -> tuple[list[torch.Tensor], Any]:
        """Begin to copy tensors to the device and convert them there; return the copies, and what tells that they end.

        Args:
            tensors: contiguous tensors on the host, which have to stay as they are until the end.
            dtypes: what each is to be there.
        """

    @abstractmethod
    def use(self, copies: Sequence[torch.Tensor], end: Any) -> None:
        """Have what is computed from now on in this thread wait for the copies."""

    @abstractmethod
    def finish(self, end: Any) -> None:
        """Wait until the copies have ended, so that the host's memory can be used again."""


class Plain(Copies):
    """Copies that have ended when they return.

    Args:
        device: where to. On the CPU itself there is no copy unless the dtype changes.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def start(self, tensors: Sequence[torch.Tensor], dtypes: Sequence[torch.dtype]) -> tuple[list[torch.Tensor], None]:
        """Copy."""
        return [tensor.to(self.device, dtype) for tensor, dtype in zip(tensors, dtypes, strict=True)], None

    def use(self, copies: Sequence[torch.Tensor], end: None) -> None:
        """Do nothing: they are there."""

    def finish(self, end: None) -> None:
        """Do nothing: they have ended."""


class Side(Copies):
    """Copies on a stream beside the one that computes.

    Args:
        device: where to.
        module: the device module, such as `torch.cuda`.
    """

    pinned = True

    def __init__(self, device: torch.device, module: Any) -> None:
        self.device = device
        self.module = module
        self.stream = module.Stream(device)

    def start(self, tensors: Sequence[torch.Tensor], dtypes: Sequence[torch.dtype]) -> tuple[list[torch.Tensor], Any]:
        """Queue the copies on the side stream."""
        with self.module.stream(self.stream):
            copies = [tensor.to(self.device, non_blocking=True) for tensor in tensors]
            converted = [copy.to(dtype) for copy, dtype in zip(copies, dtypes, strict=True)]
            end = self.module.Event()
            end.record(self.stream)
        return converted, end

    def use(self, copies: Sequence[torch.Tensor], end: Any) -> None:
        """Have the current stream wait for the copies, and keep their memory until it is done with them."""
        current = self.module.current_stream(self.device)
        current.wait_event(end)
        for copy in copies:
            copy.record_stream(current)

    def finish(self, end: Any) -> None:
        """Wait for the copies on the host."""
        end.synchronize()


def copies_to(device: torch.device) -> Copies:
    """Return how tensors get to `device` best."""
    if device.type in ("cpu", "meta", "mps"):
        return Plain(device)
    module = torch.get_device_module(device)
    has_streams = all(hasattr(module, name) for name in ("Stream", "Event", "stream", "current_stream"))
    return Side(device, module) if has_streams else Plain(device)
