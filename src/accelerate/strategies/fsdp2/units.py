"""Which modules are gathered together: the units of a sharded model.

A unit's parameters are gathered in one message before its forward pass and freed after it, so the memory of a step is
that of the shards and one or two units. The policy says which modules are units; what is left belongs to the whole
model, but for the output layer, which is needed last and large.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from accelerate.base.messages import did_you_mean, message, warn_once

Unit = tuple[torch.nn.Module, ...]


@dataclass(frozen=True)
class Units:
    """The units of one model, in the order in which they are sharded: inner ones before those around them.

    Args:
        blocks: those of the policy.
        ends: what is used once at the beginning or end of a pass: embeddings, the output layer.
    """

    blocks: tuple[Unit, ...] = ()
    ends: tuple[Unit, ...] = ()


def units_of(model: torch.nn.Module, policy: Any, ignored: Collection[torch.nn.Parameter] = ()) -> Units:
    """Return the units of `model`.

    Args:
        model: a model whose parameters are where they belong (tied ones are the same object).
        policy: a function as `torch.distributed.fsdp.wrap` has them, a policy object of it, or None for no blocks.
        ignored: parameters that belong to no unit.
    """
    chosen = [module for module in _chosen(model, policy, set(ignored)) if not _is_ignored(module, ignored)]
    users = _users((model,))
    blocks = tuple((module,) for module in chosen if _is_closed(users, (module,)))
    if len(blocks) < len(chosen):
        warn_once(
            f"{len(chosen) - len(blocks)} modules that the policy chose share parameters with others, and are gathered "
            "together with the whole model."
        )
    inside = {module for unit in blocks for each in unit for module in each.modules()}
    return Units(blocks, tuple(unit for unit in _ends(model, inside) if _is_closed(users, unit)))


def _chosen(model: torch.nn.Module, policy: Any, ignored: set[torch.nn.Parameter]) -> Iterator[torch.nn.Module]:
    """Yield the modules that the policy chooses, inner ones first; never the model itself."""
    if policy is None:
        return
    if hasattr(policy, "_run_policy"):
        chosen = policy._run_policy(model, set(), {})
        yield from (module for module in _bottom_up(model) if module in chosen and module is not model)
        return
    found: list[torch.nn.Module] = []
    _visit(model, policy, ignored, found)
    yield from (module for module in found if module is not model)


def _visit(
    module: torch.nn.Module, policy: Callable[..., bool], left: set[torch.nn.Parameter], found: list[torch.nn.Module]
) -> None:
    """Ask a policy about `module` after its children, as torch does; `left` collects parameters that have a unit."""
    if module in found:
        return
    own = [each for each in module.parameters() if each not in left]
    if policy(module=module, recurse=True, nonwrapped_numel=sum(each.numel() for each in own)):
        for child in module.children():
            _visit(child, policy, left, found)
    own = [each for each in module.parameters() if each not in left]
    if policy(module=module, recurse=False, nonwrapped_numel=sum(each.numel() for each in own)):
        found.append(module)
        left.update(own)


def _is_ignored(module: torch.nn.Module, ignored: Collection[torch.nn.Parameter]) -> bool:
    """Whether a module has parameters, and all of them belong to no unit."""
    return all(each in ignored for each in module.parameters()) and next(module.parameters(), None) is not None


def _bottom_up(module: torch.nn.Module) -> Iterator[torch.nn.Module]:
    for child in module.children():
        yield from _bottom_up(child)
    yield module


def _users(unit: Unit) -> Counter[torch.nn.Parameter]:
    """Return how many modules of a unit use each of its parameters themselves."""
    modules = {module for each in unit for module in each.modules()}
    return Counter(parameter for module in modules for parameter in module.parameters(recurse=False))


def _is_closed(users: Counter[torch.nn.Parameter], unit: Unit) -> bool:
    """Whether no parameter of the unit is used outside of it; tied ones have to be gathered with all their users.

    Args:
        users: how many modules of the whole model use each parameter.
    """
    return all(users[parameter] == count for parameter, count in _users(unit).items())


def _ends(model: torch.nn.Module, inside: Collection[torch.nn.Module]) -> Iterator[Unit]:
    """Yield the embeddings, and the output layer with the norm before it, of a model that says which they are."""
    first, last = _layer(model, "get_input_embeddings"), _layer(model, "get_output_embeddings")
    if first is not None and first not in inside and first is not model:
        yield (first,)
    if last is not None and last not in inside and last is not model:
        norm = final_norm(model, inside)
        yield (last,) if norm is None or _dtypes(norm) != _dtypes(last) else (norm, last)


def _dtypes(module: torch.nn.Module) -> set[torch.dtype]:
    return {parameter.dtype for parameter in module.parameters()}


def _layer(model: torch.nn.Module, getter: str) -> torch.nn.Module | None:
    try:
        layer = getattr(model, getter, lambda: None)()
    except NotImplementedError:  # transformers models without such a layer
        return None
    return layer if isinstance(layer, torch.nn.Module) and any(True for _ in layer.parameters()) else None


def final_norm(model: torch.nn.Module, inside: Collection[torch.nn.Module] = ()) -> torch.nn.Module | None:
    """Return the norm between the last block and the output layer: the last one beside a list of blocks."""
    norms = [
        child
        for parent in model.modules()
        if any(isinstance(child, torch.nn.ModuleList) for child in parent.children())
        for child in parent.children()
        if "norm" in type(child).__name__.lower() and child not in inside
    ]
    return norms[-1] if norms else None


def ignored_modules_of(model: torch.nn.Module, ignored: Any) -> list[torch.nn.Module]:
    """Return the modules that are left alone.

    Args:
        ignored: modules, or a regular expression that whole module names match; None for none.

    Raises:
        ValueError: the expression matches no module.
    """
    if ignored is None:
        return []
    if not isinstance(ignored, str):
        return list(ignored)
    expression = _expression(ignored)
    found = [module for name, module in model.named_modules() if expression.fullmatch(name)]
    if not found:
        names = [name for name, _ in model.named_modules() if name]
        raise ValueError(
            message(
                given=f"ignored_modules={ignored!r}",
                why=f"no module of {type(model).__name__} has a name that matches",
                allowed="a regular expression that matches the whole name of a module, such as 'encoder.*'",
                do=did_you_mean(ignored, names[:200]),
            )
        )
    return found


def _expression(text: str) -> re.Pattern[str]:
    try:
        return re.compile(text)
    except re.error as error:
        raise ValueError(
            message(
                given=f"ignored_modules={text!r}",
                why=f"it is no regular expression: {error}",
                allowed="a regular expression that matches the whole name of a module, such as 'encoder.*'; or modules",
                do="put a backslash before characters that stand for themselves",
            )
        ) from error


def parameters_of(modules: Iterable[torch.nn.Module]) -> set[torch.nn.Parameter]:
    """Return all parameters of modules."""
    return {parameter for module in modules for parameter in module.parameters()}
