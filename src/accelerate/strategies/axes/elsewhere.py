"""Tensors that other ranks of a pipeline have: what is left of them here, and gradients of those that several have."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor

from accelerate.checkpointing.tensors import like, local_of

#: A parameter's places in a model: modules that hold it, and what it is called there.
Owners = list[tuple[torch.nn.Module, str]]


def let_go(parameter: torch.nn.Parameter) -> None:
    """Let go of the values of a parameter of another rank, which keeps its shape: one zero, seen everywhere in it."""
    parameter.grad = None
    if isinstance(parameter, DTensor):
        local: Any = parameter._local_tensor
        parameter._local_tensor = local.new_zeros(()).expand(local.shape)
    else:
        parameter.data = parameter.data.new_zeros(()).expand(parameter.shape)
    mark(parameter)


def mark(tensor: torch.Tensor) -> None:
    """Note that what counts of a tensor is on another rank."""
    tensor.is_elsewhere = True  # type: ignore[attr-defined]


def is_elsewhere(tensor: torch.Tensor) -> bool:
    """Whether what counts of a tensor is on another rank."""
    return getattr(tensor, "is_elsewhere", False)


def multiply_(tensors: Sequence[torch.Tensor], factor: torch.Tensor) -> None:
    """Multiply tensors, DTensors among them, in place by a plain number, which is a tensor.

    A factor of 1 takes no pass over memory where that can be known without waiting for a device.
    """
    if tensors and not (factor.device.type == "cpu" and factor.item() == 1):
        torch._foreach_mul_([local_of(each) for each in tensors], factor)


def zeros_like(parameter: torch.Tensor) -> torch.Tensor:
    """Return the gradient of a parameter that a batch has not used."""
    return like(torch.zeros_like(local_of(parameter)), parameter)


def owners_of(model: torch.nn.Module) -> dict[torch.nn.Parameter, Owners]:
    """Return the places of each parameter of a model, tied ones among them."""
    found: dict[torch.nn.Parameter, Owners] = {}
    for module in model.modules():
        for key, parameter in module._parameters.items():
            if parameter is not None:
                found.setdefault(parameter, []).append((module, key))
    return found


def tie_again(before: Iterable[tuple[torch.nn.Parameter, Owners]]) -> dict[torch.nn.Parameter, torch.nn.Parameter]:
    """Let all places of a parameter have what has become of it in one of them; return this for each parameter."""
    became: dict[torch.nn.Parameter, torch.nn.Parameter] = {}
    for parameter, places in before:
        new = next((now for module, key in places if (now := module._parameters[key]) is not parameter), parameter)
        became[parameter] = new if new is not None else parameter
        for module, key in places:
            module._parameters[key] = became[parameter]
    return became


class Shared:
    """A parameter that stages of several ranks use, each of which has a copy.

    Args:
        parameter: this rank's copy; on all ranks but the first of them it is marked as borrowed.
        ranks: the ranks of the pipeline that use it, this one among them, in order.
        pipeline: the ranks of the pipeline.
    """

    def __init__(self, parameter: torch.nn.Parameter, ranks: Sequence[int], pipeline: Any) -> None:
        self.parameter = parameter
        everybody = dist.get_process_group_ranks(pipeline)
        self.group = dist.new_group([everybody[rank] for rank in ranks], use_local_synchronization=True)
        parameter.is_borrowed = dist.get_rank() != everybody[ranks[0]]  # type: ignore[attr-defined]

    def add_up(self) -> None:
        """Give all copies the sum of their gradients."""
        parameter = self.parameter
        if parameter.grad is None:
            parameter.grad = zeros_like(parameter)
        if isinstance(parameter, DTensor):  # each use of it has gradients that are laid out in its own way
            gradient: Any = parameter.grad
            parameter.grad = gradient.redistribute(parameter.device_mesh, parameter.placements)
        assert parameter.grad is not None
        dist.all_reduce(local_of(parameter.grad), group=self.group)
