"""Moving batches to a device, by a function chosen once per loader.

Data loaders make batches on the CPU, so with a CPU run there is nothing to move but in odd cases, and that is found out
by a walk that builds nothing.
"""

from __future__ import annotations

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
        return to_cpu
    return partial(send_to_device, device=device, non_blocking=non_blocking)


def to_cpu(batch: Any) -> Any:
    """Return the batch with everything on the CPU; the very same one when it is there already."""
    return batch if on_cpu(batch) else send_to_device(batch, "cpu")


def on_cpu(data: Any) -> bool:
    """Tell whether nested data is known to be on the CPU; False also for objects that only a move would tell about."""
    kind = type(data)
    if kind is dict:
        data = data.values()
    elif kind is Tensor:
        return data.is_cpu
    elif kind is not list and kind is not tuple:
        if kind in PLAIN:
            return True
        if isinstance(data, Mapping):
            data = data.values()
        elif not isinstance(data, (tuple, list)):
            return False
    for value in data:  # noqa: SIM110  # a generator would cost as much as the walk
        if not (value.is_cpu if type(value) is Tensor else on_cpu(value)):
            return False
    return True
