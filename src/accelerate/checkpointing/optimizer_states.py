"""States of optimizers on disk, by the numbers of parameters (as torch's `state_dict` has them) or by their names.

Names survive another way of sharding, numbers do not need any; a checkpoint of either kind can be loaded by a run that
writes the other.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

#: What wrappers put into the names of parameters.
WRAPPER_PARTS = frozenset({"module", "_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"})

Names = Sequence[Sequence[str | None]]


def flat_names(names: Names) -> list[str]:
    """Return one name per parameter, in the order of the groups; what has none is called by its number."""
    return [name or f"parameter_{number}" for number, name in enumerate(itertools.chain(*names))]


def by_name(state: Mapping[str, Any], names: Names) -> dict[str, Any]:
    """Return a state whose parameters are numbered with their names instead."""
    named = flat_names(names)
    groups = [{**group, "params": [named[number] for number in group["params"]]} for group in state["param_groups"]]
    return {"state": {named[number]: each for number, each in state["state"].items()}, "param_groups": groups}


def by_number(state: Mapping[str, Any], names: Names) -> dict[str, Any]:
    """Return a state whose parameters are named with their numbers instead; a numbered one comes back as it is.

    The groups are those of `names`, so that parameters may have been saved in another order.
    """
    if not is_named(state):
        return dict(state)
    named = flat_names(names)
    numbers = {name: number for number, name in enumerate(named)}
    counted = itertools.count()
    groups = [
        {**group, "params": [next(counted) for _ in mine]}
        for group, mine in zip(state["param_groups"], names, strict=True)
    ]
    known = {numbers[name]: each for name, each in state["state"].items() if name in numbers}
    return {"state": known, "param_groups": groups}


def is_named(state: Mapping[str, Any]) -> bool:
    """Whether parameters are named rather than numbered."""
    kept = itertools.chain(state["state"], *(group["params"] for group in state["param_groups"]))
    return any(isinstance(each, str) for each in kept)


def unknown_names(state: Mapping[str, Any], names: Names) -> list[str]:
    """Return the names of parameters that a state has and an optimizer doesn't."""
    return sorted(set(state["state"]) - set(flat_names(names))) if is_named(state) else []


def names_of_groups(optimizer: Any, names: Mapping[int, str]) -> list[list[str | None]]:
    """Return the names of an optimizer's parameters, group by group, from those by identity."""
    return [[names.get(id(parameter)) for parameter in group["params"]] for group in optimizer.param_groups]


def parameters_of(optimizer: Any) -> list[torch.Tensor]:
    """Return the parameters of an optimizer in the order of their numbers."""
    return list(itertools.chain(*(group["params"] for group in optimizer.param_groups)))


def names_by_identity(models: Sequence[torch.nn.Module]) -> dict[int, str]:
    """Return the names that parameters have in the bare models, by the parameters' identity."""
    return {id(parameter): name for model in models for name, parameter in _named_parameters(model)}


def _named_parameters(model: torch.nn.Module) -> Iterator[tuple[str, torch.nn.Parameter]]:
    """Yield parameters by the names they have in the bare model."""
    for name, parameter in model.named_parameters():
        kept = [part for part in name.split(".") if part not in WRAPPER_PARTS]
        yield ".".join(kept), parameter
