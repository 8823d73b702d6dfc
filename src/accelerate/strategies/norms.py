"""Clipping gradients that are sharded over a device mesh, or over several.

The norm of a model is that of all its elements, wherever they are. Gradients on one mesh are one DTensor norm; the
norms of different meshes, and that of plain tensors, combine like those of the parts of one vector.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor

from accelerate.checkpointing.tensors import local_of


@torch.no_grad()
def clip_grad_norm_(
    parameters: Iterable[torch.Tensor],
    max_norm: float,
    norm_type: float = 2,
    combine: Callable[[torch.Tensor], torch.Tensor] | None = None,
) -> torch.Tensor:
    """Clip the gradients of `parameters` to a total norm and return the norm before, a plain 0-d tensor.

    Args:
        parameters: plain ones and DTensors, also of different meshes.
        max_norm: what the total norm is reduced to.
        norm_type: the p of the norm; `inf` is the greatest element.
        combine: makes the norm of the model of the norm of what this rank holds; by default they are the same.
    """
    groups = gradients_by_mesh(parameters)
    total = total_norm(groups.values(), norm_type)
    if combine is not None:
        total = combine(total)
    factor = torch.clamp(max_norm / (total + 1e-6), max=1.0)
    for gradients in groups.values():
        torch._foreach_mul_(gradients, factor.to(gradients[0].device))
    return total


@torch.no_grad()
def clip_grad_value_(parameters: Iterable[torch.Tensor], clip_value: float) -> None:
    """Clip each element of the gradients of `parameters` to [-clip_value, clip_value]."""
    for gradients in gradients_by_mesh(parameters).values():
        for gradient in gradients:
            local_of(gradient).clamp_(-clip_value, clip_value)


def gradients_by_mesh(parameters: Iterable[torch.Tensor]) -> dict[Any, list[torch.Tensor]]:
    """Return the gradients of `parameters` by the mesh and placements that they have in common; None: plain tensors."""
    groups: dict[Any, list[torch.Tensor]] = {}
    for parameter in parameters:
        gradient = parameter.grad
        if gradient is not None:
            place = (gradient.device_mesh, gradient.placements) if isinstance(gradient, DTensor) else gradient.device
            groups.setdefault(place, []).append(gradient)
    return groups


def total_norm(groups: Iterable[list[torch.Tensor]], norm_type: float) -> torch.Tensor:
    """Return the norm of all tensors together, fp32 or wider, the same on all ranks of their meshes."""
    norms = [_norm(tensors, norm_type) for tensors in groups]
    if not norms:
        return torch.tensor(0.0)
    return torch.linalg.vector_norm(torch.stack([norm.to(norms[0].device) for norm in norms]), norm_type)


def _norm(tensors: list[torch.Tensor], norm_type: float) -> torch.Tensor:
    """Return the norm of tensors on one mesh, with the same placements."""
    placed: Any = tensors[0]
    if not isinstance(placed, DTensor) or any(placement.is_partial() for placement in placed.placements):
        norm = torch.linalg.vector_norm(torch.stack(list(torch._foreach_norm(tensors, norm_type))), norm_type)
        return _wide(norm.full_tensor() if isinstance(norm, DTensor) else norm)
    local = [each.to_local() for each in tensors]  # type: ignore[attr-defined]
    filled = [each for each in local if each.numel()]
    norms = [_wide(norm) for norm in torch._foreach_norm(filled, norm_type)] if filled else []
    norm = torch.linalg.vector_norm(torch.stack(norms), norm_type) if norms else _wide(local[0].new_zeros(()))
    for dim, placement in enumerate(placed.placements):
        if not placement.is_replicate():
            norm = norm_over(norm, norm_type, placed.device_mesh.get_group(dim))
    return norm


def _wide(norm: torch.Tensor) -> torch.Tensor:
    return norm if norm.dtype in (torch.float32, torch.float64) else norm.float()


def norm_over(norm: torch.Tensor, norm_type: float, group: Any) -> torch.Tensor:
    """Return the norm of what the ranks of `group` have together, from the norm of what this rank has."""
    if norm_type == float("inf"):
        dist.all_reduce(norm, dist.ReduceOp.MAX, group)
        return norm
    powered = norm**norm_type
    dist.all_reduce(powered, dist.ReduceOp.SUM, group)
    return powered ** (1 / norm_type)
