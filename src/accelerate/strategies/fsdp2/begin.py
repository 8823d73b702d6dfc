"""The weights a sharded model begins with: those of the main process, on all ranks, one unit at a time.

A rank may come with a model on the meta device (`cpu_ram_efficient_loading`), or with other random weights because its
seed differed. Sharding would cut such a model together from pieces that don't belong together, so the ranks compare
their weights first and the main process sends out its own where they differ. Only the parameters of one unit are whole
on a device at any time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.distributed.tensor import DTensor

from accelerate.base.messages import message
from accelerate.comm.collectives import Collectives
from accelerate.strategies.fsdp2.dtypes import is_quantized

#: How many elements of a tensor are looked at when ranks compare their weights.
SAMPLED = 64


@dataclass(frozen=True)
class Beginning:
    """Where the values of a model come from.

    Args:
        collectives: the ranks among which the model is sharded.
        device: where a unit is put together.
        from_main: the main process sends its values to the others.
    """

    collectives: Collectives
    device: torch.device
    from_main: bool

    @property
    def is_source(self) -> bool:
        """Whether the values are those of this rank."""
        return self.collectives.rank == 0 or not self.from_main

    def place(self, modules: Iterable[torch.nn.Module]) -> None:
        """Put parameters and buffers that `modules` hold themselves on the device, with the values to begin with."""
        placed: dict[torch.Tensor, torch.Tensor] = {}
        for module in modules:
            for name, parameter in module._parameters.items():
                if parameter is None or isinstance(parameter, DTensor):
                    continue
                if is_quantized(parameter):
                    module._parameters[name] = self._moved(parameter)
                    continue
                if parameter not in placed:
                    placed[parameter] = self._placed_parameter(parameter)
                module._parameters[name] = placed[parameter]  # type: ignore[assignment]
            for name, buffer in module._buffers.items():
                if buffer is not None and buffer not in placed:
                    placed[buffer] = self._values(buffer)
                if buffer is not None:
                    module._buffers[name] = placed[buffer]

    def _moved(self, parameter: torch.nn.Parameter) -> Any:
        """Return a quantized parameter on the device; its values are those of this rank."""
        if parameter.device.type == self.device.type == "cpu":
            return parameter
        moved = parameter.to(self.device)
        return moved if isinstance(moved, torch.nn.Parameter) else torch.nn.Parameter(moved, requires_grad=False)

    def _placed_parameter(self, parameter: torch.nn.Parameter) -> torch.nn.Parameter:
        """Return `parameter` with its values on the device; the same object unless it was on the meta device."""
        values = self._values(parameter.data)
        if not parameter.is_meta:
            parameter.data = values
            return parameter
        new = torch.nn.Parameter(values, requires_grad=parameter.requires_grad)
        new.__dict__.update(parameter.__dict__)
        return new

    def _values(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return what `tensor` begins with, on the device."""
        values = tensor.to(self.device) if self.is_source else torch.empty_like(tensor, device=self.device)
        if self.from_main:
            values = values.contiguous()
            self.collectives.broadcast(values)
        return values


def begin(model: torch.nn.Module, collectives: Collectives, device: torch.device, *, only_main: bool) -> Beginning:
    """Compare the models of all ranks and return where values come from.

    Args:
        only_main: the main process alone has read its weights; there is nothing to compare.

    Raises:
        ValueError: the ranks have models of different shapes, or the main process has a model without values.
    """
    own = dict(_facts(model, sampled=not only_main))
    everybody = collectives.all_gather_object(own)
    main = everybody[0]
    for rank, other in enumerate(everybody):
        difference = _difference(main, other)
        if difference is not None:
            raise ValueError(
                message(
                    given=f"another {type(model).__name__} on rank {rank} than on rank 0",
                    why=f"{difference}; ranks that shard a model together have to build the same one",
                    allowed="the same architecture and dtypes on all ranks; weights may differ, those of rank 0 count",
                    do="look for code that builds the model from the rank or from data of one process",
                )
            )
    empty = [name for name, fact in main.items() if fact.is_meta]
    if empty:
        raise ValueError(
            message(
                given=f"a {type(model).__name__} whose {empty[0]} is on the meta device on the main process",
                why="there are no values to begin with",
                allowed="a model with weights on rank 0; other ranks may have theirs on the meta device",
                do="load or initialise the model on rank 0, or pass param_init_fn",
            )
        )
    return Beginning(collectives, device, only_main or any(other != main for other in everybody))


@dataclass(frozen=True)
class Fact:
    """What ranks compare of one tensor."""

    shape: tuple[int, ...]
    dtype: str
    is_meta: bool
    sample: float | None


def _facts(model: torch.nn.Module, *, sampled: bool) -> Iterator[tuple[str, Fact]]:
    """Yield what is compared of each parameter and buffer; parameters that are DTensors belong to another axis."""
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if not isinstance(tensor, DTensor):
            compared = sampled and not tensor.is_meta and not is_quantized(tensor)
            sample = _sample(tensor.detach()) if compared else None
            yield name, Fact(tuple(tensor.shape), str(tensor.dtype), tensor.is_meta, sample)


def _sample(tensor: torch.Tensor) -> float:
    """Return a number that differs between tensors with different values, but for rare accidents."""
    flat = tensor.reshape(-1)
    few = flat[:: max(1, flat.numel() // SAMPLED)][:SAMPLED]
    weights = torch.arange(1, few.numel() + 1, dtype=torch.float64)
    return float((few.to("cpu", torch.float64) * weights).nan_to_num(nan=1.0, posinf=2.0, neginf=3.0).sum())


def _difference(main: dict[str, Fact], other: dict[str, Fact]) -> str | None:
    """Return in what two models differ beside their values, or None."""
    for name in main.keys() | other.keys():
        one, two = main.get(name), other.get(name)
        if one is None or two is None:
            return f"only one of them has {name}"
        if (one.shape, one.dtype) != (two.shape, two.dtype):
            return f"{name} is {one.dtype}{list(one.shape)} on one, {two.dtype}{list(two.shape)} on the other"
    return None


def materialise(model: torch.nn.Module, init: Any) -> None:
    """Call `init` (the plugin's `param_init_fn`) on each module that holds parameters on the meta device itself."""
    for module in model.modules():
        if any(each is not None and each.is_meta for each in (*module._parameters.values(), *module._buffers.values())):
            init(module)
