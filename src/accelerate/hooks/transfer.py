"""Inputs and outputs on their way between devices; written so that `torch.compile` follows it without a break."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import torch

from accelerate.comm.tree import find_device, send_to_device


def to_device(data: Any, device: torch.device, skipped: Collection[str] = ()) -> Any:
    """Return nested data with its tensors on `device`.

    Args:
        data: tensors in lists, tuples, dicts and whatever else `send_to_device` knows.
        device: where to.
        skipped: keys whose values stay where they are, at every level.
    """
    if isinstance(data, torch.Tensor):
        return data.to(device)
    kind = type(data)
    if kind is tuple:
        return tuple([to_device(each, device, skipped) for each in data])
    if kind is list:
        return [to_device(each, device, skipped) for each in data]
    if kind is dict:
        return {key: each if key in skipped else to_device(each, device, skipped) for key, each in data.items()}
    if data is None or kind in _PLAIN:
        return data
    return send_to_device(data, device, skip_keys=list(skipped))


def device_of(data: Any) -> torch.device | None:
    """Return the device of the first tensor in nested data, or None."""
    if isinstance(data, torch.Tensor):
        return data.device
    kind = type(data)
    if kind is tuple or kind is list:
        return _first(data)
    if kind is dict:
        return _first(list(data.values()))
    return None if data is None or kind in _PLAIN else find_device(data)


def _first(values: Any) -> torch.device | None:
    for each in values:
        found = device_of(each)
        if found is not None:
            return found
    return None


_PLAIN = (bool, int, float, str)
