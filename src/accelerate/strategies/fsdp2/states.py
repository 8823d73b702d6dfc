"""The state of a sharded model, by shard or put together one tensor at a time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.distributed.tensor import DTensor

from accelerate.strategies.relink import canonical_name


def sharded_state(model: torch.nn.Module) -> dict[str, Any]:
    """Return the state of `model` under the names of the bare model.

    Its tensors are DTensors that share memory with the parameters; a tied one is the same object under all its names.
    """
    same = {name: id(parameter) for name, parameter in model.named_parameters(remove_duplicate=False)}
    found: dict[int, Any] = {}
    state = model.state_dict()
    return {canonical_name(name): found.setdefault(same.get(name, id(value)), value) for name, value in state.items()}


@torch.no_grad()
def whole(state: Mapping[str, Any], keep: bool) -> dict[str, Any]:
    """Return a sharded state put together in host memory; all ranks take part.

    Args:
        state: what `sharded_state` returned.
        keep: this rank wants it; the others hold one whole tensor at a time and return an empty dictionary.
    """
    gathered: dict[int, Any] = {}
    for value in state.values():
        if id(value) not in gathered:
            gathered[id(value)] = _whole(value, keep)
    return {name: gathered[id(value)] for name, value in state.items()} if keep else {}


def full_state(model: torch.nn.Module, keep: bool) -> dict[str, Any]:
    """Return the whole state of `model` in host memory; all ranks take part, see :func:`whole`."""
    return whole(sharded_state(model), keep)


def _whole(value: Any, keep: bool) -> Any:
    """Return a value as a whole in host memory, None where nobody wants it."""
    if isinstance(value, DTensor):
        value = value.full_tensor()
    if not keep:
        return None
    return value.to("cpu", copy=True) if isinstance(value, torch.Tensor) else value
