"""The parameters that no plan divides, where no other axis makes DTensors of them.

Optimizers and norms take DTensors or plain tensors, not both at once. So what is whole on every rank becomes a DTensor
too, and modules compute with the plain tensor inside of it: while a forward pass runs, their attributes are that
tensor, through which gradients reach the parameter.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate

Names = list[tuple[torch.nn.Module, str]]


def replicate_rest(model: torch.nn.Module, mesh: DeviceMesh) -> None:
    """Make DTensors of the plain parameters of `model`, in place; forward passes go on seeing plain tensors."""
    new: dict[torch.Tensor, torch.nn.Parameter] = {}
    found: Names = []
    for module in model.modules():
        for name, parameter in module._parameters.items():
            if parameter is not None and not isinstance(parameter, DTensor):
                if parameter not in new:
                    new[parameter] = _whole_on(parameter, mesh)
                module._parameters[name] = new[parameter]
                found.append((module, name))
    for module in model.modules():
        inside = set(module.modules())
        names = [each for each in found if each[0] in inside]
        if names:
            module.forward = functools.wraps(module.forward)(functools.partial(_plainly, module.forward, names))


def _whole_on(parameter: torch.nn.Parameter, mesh: DeviceMesh) -> torch.nn.Parameter:
    whole = DTensor.from_local(parameter.detach(), mesh, [Replicate()], run_check=False)
    new = torch.nn.Parameter(whole, requires_grad=parameter.requires_grad)
    new.__dict__.update(parameter.__dict__)
    return new


def _plainly(forward: Callable[..., Any], names: Names, *args: Any, **kwargs: Any) -> Any:
    """Call `forward` while parameters are plain tensors; inside of a pass where they are already, just call it."""
    if names[0][1] in names[0][0].__dict__:
        return forward(*args, **kwargs)
    try:
        _show(names)
        return forward(*args, **kwargs)
    finally:
        for module, name in names:
            module.__dict__.pop(name, None)


def _show(names: Iterable[tuple[torch.nn.Module, str]]) -> None:
    local: dict[int, torch.Tensor] = {}
    for module, name in names:
        parameter: Any = module._parameters[name]
        if id(parameter) not in local:
            local[id(parameter)] = parameter.to_local()
        module.__dict__[name] = local[id(parameter)]
