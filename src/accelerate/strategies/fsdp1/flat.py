"""Flat parameters: which ones an optimizer holds, and how long the gradients of all ranks are together.

With `use_orig_params=False` the parameters of a unit are one tensor, which an optimizer that was built from the bare
model doesn't know. With True they keep their identity and are views of their rank's part, often an empty one.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.utils.weak import WeakTensorKeyDictionary

from accelerate.base.messages import message
from accelerate.strategies.norms import norm_over
from accelerate.strategies.relink import canonical_name

#: For each optimizer, the names of its parameters, group by group, as they were before they became flat.
_names: weakref.WeakKeyDictionary[Any, list[list[str | None]]] = weakref.WeakKeyDictionary()


def units_in(model: torch.nn.Module) -> Iterator[FullyShardedDataParallel]:
    """Yield the wrappers in `model`, itself among them if it is one."""
    return (module for module in model.modules() if isinstance(module, FullyShardedDataParallel))


def names_of_flat(root: torch.nn.Module) -> dict[torch.Tensor, list[str]]:
    """Return the names in the bare model of what each flat parameter is made of."""
    found: dict[torch.Tensor, list[str]] = {}
    for prefix, module in root.named_modules():
        handle = getattr(module, "_handle", None) if isinstance(module, FullyShardedDataParallel) else None
        if handle is not None:
            start = canonical_name(f"{prefix}.") if prefix else ""
            found[handle.flat_param] = [f"{start}{canonical_name(name)}" for name in handle.flat_param._fqns]
    return found


class Held:
    """What an optimizer holds of bare models, noted before they are wrapped.

    Args:
        optimizer: the optimizer, prepared or not.
        models: the models, bare but for those that were prepared before.
    """

    def __init__(self, optimizer: Any, models: Sequence[torch.nn.Module]) -> None:
        self.optimizer = optimizer
        known = {
            id(parameter): (place, canonical_name(name))
            for place, model in enumerate(models)
            if next(units_in(model), None) is None  # what is flat already stays as it is
            for name, parameter in model.named_parameters()
        }
        groups = [[(known.get(id(each)), each) for each in group["params"]] for group in optimizer.param_groups]
        self.names = [[None if place is None else place[1] for place, _ in group] for group in groups]
        self._of_group = {place: index for index, group in enumerate(groups) for place, _ in group if place is not None}
        self._others = [[each for place, each in group if place is None] for group in groups]

    def link(self, roots: Sequence[torch.nn.Module]) -> None:
        """Point the optimizer at the flat parameters of the wrapped models.

        Args:
            roots: the wrapped models, in the order of the bare ones.

        Raises:
            ValueError: two groups share a flat parameter, or the optimizer trains only a part of one.
        """
        if not self._of_group:
            return
        groups: list[list[Any]] = [list(each) for each in self._others]
        for place, root in enumerate(roots):
            for flat, parts in names_of_flat(root).items():
                chosen = {name: self._of_group.get((place, name)) for name in parts}
                if len(set(chosen.values())) > 1:
                    raise ValueError(_several(self.optimizer, chosen))
                index = chosen[parts[0]]
                if index is not None:
                    groups[index].append(flat)
        for group, parameters in zip(self.optimizer.param_groups, groups, strict=True):
            group["params"] = parameters
        _names[getattr(self.optimizer, "optimizer", self.optimizer)] = self.names


def names_of(optimizer: Any, roots: Sequence[torch.nn.Module]) -> list[list[str | None]]:
    """Return the names of an optimizer's parameters, group by group; those inside flat ones one by one."""
    inner = getattr(optimizer, "optimizer", optimizer)
    if inner in _names:
        return _names[inner]
    known: dict[torch.Tensor, list[str]] = {}
    for root in roots:
        known.update({each: [canonical_name(name)] for name, each in root.named_parameters()} | names_of_flat(root))
    return [[name for each in group["params"] for name in known.get(each, [None])] for group in inner.param_groups]


def _several(optimizer: Any, chosen: dict[str, int | None]) -> str:
    (one, group), *rest = chosen.items()
    other = next(name for name, another in rest if another != group)
    return message(
        given=f"a {type(optimizer).__name__} that treats {one} and {other} differently",
        why="with use_orig_params=False both are parts of one flat tensor, which has one group of settings",
        allowed="optimizers with one group, that hold all trained parameters; any with use_orig_params=True",
        do="pass FullyShardedDataParallelPlugin(use_orig_params=True), or fsdp_version=2",
    )


class Shards:
    """Which parameters are this rank's part of a whole, and who has the other parts."""

    def __init__(self) -> None:
        self._groups: Any = WeakTensorKeyDictionary()

    def add(self, root: torch.nn.Module) -> None:
        """Learn of a wrapped model."""
        for unit in units_in(root):
            handle = unit._handle
            if handle is not None and handle.uses_sharded_strategy:
                for each in (handle.flat_param, *(handle.flat_param._params or ())):
                    self._groups[each] = handle.process_group

    @torch.no_grad()
    def clip_grad_norm_(self, parameters: Iterable[torch.Tensor], max_norm: float, norm_type: float) -> torch.Tensor:
        """Clip the gradients of `parameters`, any of them, to a total norm and return the norm before (0-d tensor)."""
        by_group: dict[Any, list[torch.Tensor]] = {}
        device = None
        for parameter in parameters:
            group = self._groups.get(parameter)
            device = parameter.device
            gradients = by_group.setdefault(group, [])
            if parameter.grad is not None and parameter.grad.numel():
                gradients.append(parameter.grad)
        norms = [_norm(gradients, norm_type, group, device) for group, gradients in by_group.items()]
        if not norms:
            return torch.tensor(0.0)
        total = torch.linalg.vector_norm(torch.stack(norms), norm_type)
        factor = torch.clamp(max_norm / (total + 1e-6), max=1.0)
        for gradients in by_group.values():
            if gradients:
                torch._foreach_mul_(gradients, factor)
        return total


def _norm(gradients: list[torch.Tensor], norm_type: float, group: Any, device: Any) -> torch.Tensor:
    """Return the norm of tensors, with those of the other ranks of `group` if there are any, in fp32."""
    each = [norm.float() for norm in torch._foreach_norm(gradients, norm_type)] if gradients else []
    norm = torch.linalg.vector_norm(torch.stack(each), norm_type) if each else torch.zeros((), device=device)
    return norm if group is None else norm_over(norm, norm_type, group)
