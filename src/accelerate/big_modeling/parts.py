"""Answers about named parts of a model for code that plans device maps by itself; the planner here has its own tree."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import torch

from accelerate.base.messages import message
from accelerate.big_modeling.sizes import class_names

Part = tuple[str, torch.nn.Module]


def get_module_size_with_ties(
    tied_params: Sequence[str],
    module_size: int | float,
    module_sizes: Mapping[str, int | float],
    modules_to_treat: Sequence[Part],
) -> tuple[int | float, list[str], list[torch.nn.Module]]:
    """Return the bytes of a module together with the parts that share parameters with it, and those parts.

    Args:
        tied_params: names of parameters outside of the module that are also in it.
        module_size: the bytes of the module.
        module_sizes: what `compute_module_sizes` returned for the model.
        modules_to_treat: the parts that are not placed yet.

    Raises:
        ValueError: a parameter of `tied_params` is in none of the parts.
    """
    found = dict(_part_of(name, modules_to_treat) for name in tied_params)
    shared = sum(module_sizes.get(name, 0) for name in tied_params)  # which the module itself has already
    return module_size - shared + sum(module_sizes[name] for name in found), list(found), list(found.values())


def _part_of(parameter: str, parts: Sequence[Part]) -> Part:
    for name, module in parts:
        if f"{parameter}.".startswith(f"{name}."):
            return name, module
    raise ValueError(
        message(
            given=f"the tied parameter {parameter}",
            why="it is in none of the parts that are to be placed",
            allowed=", ".join(name for name, _ in parts) or "nothing: there are no parts",
            do="pass every part that is not placed yet in `modules_to_treat`",
        )
    )


def fallback_allocate(
    modules: Sequence[Part],
    module_sizes: Mapping[str, int | float],
    size_limit: int | float,
    no_split_module_classes: str | Iterable[str] | None = None,
    tied_parameters: Iterable[Sequence[str]] | None = None,
) -> tuple[str | None, torch.nn.Module | None, list[Part]]:
    """Find a module that fits, looking into each part in turn, level by level.

    Args:
        modules: the parts that are not placed yet.
        module_sizes: what `compute_module_sizes` returned for the model.
        size_limit: the bytes that there is room for.
        no_split_module_classes: names of classes that are not to be split.
        tied_parameters: groups of names that stand for one parameter.

    Returns:
        The name of the module, the module, and the parts that are left, with those that it was taken out of split.
    """
    whole, groups = class_names(no_split_module_classes), list(tied_parameters or ())
    for index, part in enumerate(modules):
        level: list[tuple[Part, list[Part]]] = [(part, [])]
        while level:
            for (name, module), left in level:
                outside = [each for group in groups for each in _outside(name, group)]
                others = [each for each in modules if each is not part] + left
                size, _, _ = get_module_size_with_ties(outside, module_sizes[name], module_sizes, others)
                if size <= size_limit:
                    return name, module, [*modules[:index], *left, *modules[index + 1 :]]
            level = [below for (each, left) in level for below in _split(each, left, whole)]
    return None, None, list(modules)


def _outside(name: str, group: Sequence[str]) -> list[str]:
    """Return the names of a group that are not in module `name`, if some are."""
    outside = [each for each in group if not each.startswith(f"{name}.")]
    return outside if len(outside) < len(group) else []


def _split(part: Part, left: list[Part], whole: frozenset[str]) -> list[tuple[Part, list[Part]]]:
    """Return the children of a part, each with what is left when it is taken."""
    name, module = part
    if type(module).__name__ in whole:
        return []
    children = [(f"{name}.{key}" if name else key, child) for key, child in module.named_children()]
    return [(each, [*left, *(other for other in children if other is not each)]) for each in children]
