"""Moving batches to a device, by a function chosen once per loader.

Data loaders make batches on the CPU, so with a CPU run there is nothing to move but in odd cases, and that is found out
by a walk that builds nothing; where the process has no other device, it does not even look at the tensors.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor

from accelerate.comm.tree import send_to_device

PLAIN = frozenset({str, bytes, int, float, complex, bool, type(None)})


def mover_to(device: torch.device | str | int | None, non_blocking: bool = False) -> Callable[[Any], Any] | None:
    """Return the function that moves a batch to `device`, or None when batches stay where they are.

    Args:
        device: where to; None leaves batches alone.
        non_blocking: do not wait for copies from pinned memory.
    """
    if device is None:
        return None
    device = torch.device(device)
    if device.type == "cpu":
        return to_cpu if others_exist() else to_only_cpu
    return partial(send_to_device, device=device, non_blocking=non_blocking)


def others_exist() -> bool:
    """Tell whether tensors of this process may be on another device than the CPU."""
    return torch.accelerator.is_available() or importlib.util.find_spec("torch_xla") is not None


def to_cpu(batch: Any) -> Any:
    """Return the batch with everything on the CPU; the very same one when it is there already."""
    return batch if is_settled(batch, True) else send_to_device(batch, "cpu")


def to_only_cpu(batch: Any) -> Any:
    """Do the same in a process that has no other device."""
    return batch if is_settled(batch, False) else send_to_device(batch, "cpu")


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
