"""Build a model without the memory for it: each parameter goes to another device, usually meta, when it is registered.

Buffers stay real unless asked otherwise, since they are often computed from each other in a constructor. Filling a
parameter on meta with random numbers has no effect but can take milliseconds, so that it is left out.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

from accelerate.base.environ import parse_flag_from_env
from accelerate.hooks.tensors import wrapped_like

#: In-place operations of initialisations that torch runs in Python, and slowly, for tensors on meta.
FILLERS = (
    "cauchy_",
    "clamp_",
    "erfinv_",
    "exponential_",
    "geometric_",
    "log_normal_",
    "normal_",
    "random_",
    "uniform_",
)


@contextlib.contextmanager
def init_empty_weights(include_buffers: bool | None = None) -> Iterator[None]:
    """Have the parameters of models that are built in the block on meta: they have shapes, but no memory.

    Args:
        include_buffers: buffers too, and every other tensor that is made in the block; by default the flag
            ACCELERATE_INIT_INCLUDE_BUFFERS, else not.
    """
    with init_on_device(torch.device("meta"), include_buffers):
        yield


@contextlib.contextmanager
def init_on_device(device: torch.device | str | int, include_buffers: bool | None = None) -> Iterator[None]:
    """Have the parameters of models that are built in the block on `device`; models of other threads are not touched.

    Args:
        device: where to.
        include_buffers: see `init_empty_weights`.
    """
    if include_buffers is None:
        include_buffers = parse_flag_from_env("ACCELERATE_INIT_INCLUDE_BUFFERS")
    device = torch.device(device)
    if include_buffers:
        with device:
            yield
        return
    _patch.enter(device)
    try:
        yield
    finally:
        _patch.leave()


class _Patch:
    """`register_parameter` and the fillers, replaced while some thread is in a block."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.local = threading.local()
        self.users = 0
        self.register: Callable[..., None] = nn.Module.register_parameter
        self.fillers: dict[str, Any] = {}

    def enter(self, device: torch.device) -> None:
        """Begin a block of this thread."""
        with self.lock:
            self.users += 1
            if self.users == 1:
                self._install()
        self._devices().append(device)

    def leave(self) -> None:
        """End the innermost block of this thread."""
        self._devices().pop()
        with self.lock:
            self.users -= 1
            if self.users == 0:
                self._remove()

    def _devices(self) -> list[torch.device]:
        if not hasattr(self.local, "devices"):
            self.local.devices = []
        return self.local.devices

    def _install(self) -> None:
        original = self.register = nn.Module.register_parameter
        devices = self._devices

        def register_parameter(module: nn.Module, name: str, param: nn.Parameter | None) -> None:
            original(module, name, param)
            inside = devices()
            if param is not None and inside and param.device != inside[-1]:
                module._parameters[name] = wrapped_like(_on(param.data, inside[-1]), param)

        nn.Module.register_parameter = register_parameter  # type: ignore[assignment, method-assign]
        self.fillers = {name: torch.Tensor.__dict__.get(name) for name in FILLERS}
        for name in FILLERS:
            setattr(torch.Tensor, name, _but_not_on_meta(getattr(torch.Tensor, name)))

    def _remove(self) -> None:
        nn.Module.register_parameter = self.register  # type: ignore[method-assign]
        for name, own in self.fillers.items():
            if own is None:
                delattr(torch.Tensor, name)  # what it inherits shows again
            else:
                setattr(torch.Tensor, name, own)


def _on(data: torch.Tensor, device: torch.device) -> torch.Tensor:
    return torch.empty_like(data, device=device) if device.type == "meta" else data.to(device)


def _but_not_on_meta(fill: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """Return `fill`, which has no effect on a tensor without data, so that it has no cost there either."""

    def filled(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        return tensor if tensor.is_meta else fill(tensor, *args, **kwargs)

    return filled


_patch = _Patch()
