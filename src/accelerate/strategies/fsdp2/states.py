"""The whole state of a sharded model, gathered one tensor at a time."""

from __future__ import annotations

from typing import Any

import torch
from torch.distributed.tensor import DTensor

from accelerate.strategies.relink import canonical_name


@torch.no_grad()
def full_state(model: torch.nn.Module, keep: bool) -> dict[str, Any]:
    """Return the whole state of `model` in host memory, under the names of the bare model; all ranks take part.

    Args:
        model: a model whose parameters are DTensors, or some of them.
        keep: this rank wants it; the others hold one whole tensor at a time and return an empty dictionary.
    """
    same = {name: id(parameter) for name, parameter in model.named_parameters(remove_duplicate=False)}
    gathered: dict[int, Any] = {}
    state: dict[str, Any] = {}
    for name, value in model.state_dict().items():
        key = same.get(name, id(value))
        if key not in gathered:
            gathered[key] = _whole(value, keep)
        if keep:
            state[canonical_name(name)] = gathered[key]
    return state


def _whole(value: Any, keep: bool) -> Any:
    """Return a value as a whole in host memory, None where nobody wants it."""
    if isinstance(value, DTensor):
        value = value.full_tensor()
    if not keep:
        return None
    return value.to("cpu", copy=True) if isinstance(value, torch.Tensor) else value
