"""Device maps: which module is on which device. Planned from budgets, tidied, and checked against a model.

A map has names of modules, or of single parameters and buffers, as keys; "" is the whole model. What it says of a
module holds for everything in it.
"""

from __future__ import annotations

import logging
import warnings
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from accelerate.base.messages import message, nearest
from accelerate.big_modeling.budget import Budget, get_max_memory
from accelerate.big_modeling.planner import Decision, Planner
from accelerate.big_modeling.sizes import class_names, sizing
from accelerate.big_modeling.tree import Node, Tree
from accelerate.big_modeling.units import readable
from accelerate.hooks.tensors import all_module_tensors, state_names

logger = logging.getLogger("accelerate.utils.modeling")

#: Where weights are kept, but not computed with if there is an accelerator.
OFFLOADED = ("cpu", "disk")


@dataclass(frozen=True)
class Plan:
    """A device map with how it came about.

    Args:
        device_map: the map, part by part in the order of definition.
        decisions: what was decided, one after the other; each prints as a line.
        budget: bytes that each device may hold.
        used: bytes that each device holds.
        tree: the parts of the model with their sizes.
    """

    device_map: OrderedDict[str, int | str]
    decisions: tuple[Decision, ...]
    budget: Budget
    used: dict[int | str, int | float]
    tree: Tree


def infer_auto_device_map(
    model: torch.nn.Module,
    max_memory: Mapping[int | str, int | str] | None = None,
    no_split_module_classes: str | Iterable[str] | None = None,
    dtype: Any = None,
    special_dtypes: Mapping[str, Any] | None = None,
    verbose: bool = False,
    clean_result: bool = True,
    offload_buffers: bool = False,
    fallback_allocation: bool = False,
) -> OrderedDict[str, int | str]:
    """Return a device map for a model, filling one device after the other.

    Args:
        model: the model, on any device.
        max_memory: bytes that each device may hold, see `get_max_memory`.
        no_split_module_classes: names of classes that are not to be split, as those with a residual connection.
        dtype: what the weights will be converted to when they are loaded.
        special_dtypes: dtypes of some parameters, by full name.
        verbose: print what is decided, and why.
        clean_result: say what holds for all parts of a module of the module.
        offload_buffers: buffers of offloaded modules will be offloaded too; if not, warn if there is no room for them.
        fallback_allocation: rather than leave a device empty, place something that fits out of turn.

    Raises:
        ValueError: `max_memory` limits the disk, and nothing has room for a part.
    """
    plan = plan_device_map(model, max_memory, no_split_module_classes, dtype, special_dtypes, fallback_allocation)
    if verbose:
        print(*plan.decisions, sep="\n")
    _warn_about_small_devices(plan)
    if not offload_buffers:
        _warn_about_buffers(plan)
    return OrderedDict(clean_device_map(plan.device_map)) if clean_result else plan.device_map


def plan_device_map(
    model: torch.nn.Module,
    max_memory: Mapping[int | str, int | str] | None = None,
    no_split_module_classes: str | Iterable[str] | None = None,
    dtype: Any = None,
    special_dtypes: Mapping[str, Any] | None = None,
    fallback_allocation: bool = False,
) -> Plan:
    """Return the device map that `infer_auto_device_map` does, before it is tidied, and how it came about."""
    budget = get_max_memory(max_memory)
    return plan_within(budget, model, no_split_module_classes, dtype, special_dtypes, fallback_allocation)


def plan_within(
    budget: Budget,
    model: torch.nn.Module,
    no_split_module_classes: str | Iterable[str] | None = None,
    dtype: Any = None,
    special_dtypes: Mapping[str, Any] | None = None,
    fallback_allocation: bool = False,
) -> Plan:
    """Return the plan of a model for devices that need not be here; `budget` is one of `as_budget`."""
    tree = Tree(model, class_names(no_split_module_classes), sizing(dtype, special_dtypes))
    planner = Planner(tree, budget, fallback_allocation).run()
    return Plan(OrderedDict(planner.map), tuple(planner.decisions), budget, planner.used, tree)


def _warn_about_small_devices(plan: Plan) -> None:
    """Warn when a device stays empty because not one part fits, or nothing that is brought in has room to run."""
    layers = [node for node in plan.tree.nodes if node.whole and node.size]
    largest = max(layers, key=lambda node: node.size, default=None)
    held = set(plan.device_map.values())
    main = next((device for device in plan.budget if device in held and device not in OFFLOADED), "cpu")
    limits = {device: limit for device, limit in plan.budget.items() if device != "disk" and limit > 0}
    small = [device for device, limit in limits.items() if largest is not None and limit < largest.size]
    small = [device for device in small if device not in held or device == main]
    if small and largest is not None and held & set(OFFLOADED):
        logger.warning(_too_small(small, limits, largest))


def _too_small(small: list[int | str], limits: Mapping[int | str, int], largest: Node) -> str:
    given = ", ".join(f"{device}: {readable(limits[device])}" for device in small)
    return message(
        given=f"max_memory of {{{given}}}",
        why=f"{largest.name}, which can't be split, takes {readable(largest.size)}: it can't even pass through",
        allowed=f"{readable(largest.size)} or more on each device that is to run something",
        do="give these devices more, leave them out, or let the class be split that is not to be",
    )


def _warn_about_buffers(plan: Plan) -> None:
    """Warn when buffers of offloaded parts, which stay on an accelerator, have no room on any."""
    room = {device: limit - plan.used[device] for device, limit in plan.budget.items() if device not in OFFLOADED}
    offloaded = sum(
        node.buffers for node in plan.tree.nodes if node.buffers and plan.device_map.get(node.name) in OFFLOADED
    )
    if room and offloaded > max(room.values()):
        warnings.warn(
            f"The buffers of offloaded modules take {readable(offloaded)} and stay on the accelerator, where "
            f"{readable(max(0, *room.values()))} are left. Pass `offload_buffers=True` to offload them too.",
            stacklevel=3,
        )


def clean_device_map(device_map: dict[str, Any], module_name: str = "") -> dict[str, Any]:
    """Say what a map says of all parts of a module of the module itself; change the map, and return it.

    Args:
        device_map: the map.
        module_name: look at this module and what is in it only.
    """
    inside = [name for name in device_map if not module_name or f"{name}.".startswith(f"{module_name}.")]
    summaries: dict[str, _Summary] = {}
    for name in inside:
        for above in (name, *_above(name, module_name)):
            summaries.setdefault(above, _Summary(device_map[name])).add(device_map[name])
    tidy = {}
    for name, device in device_map.items():
        if name in summaries:
            tidy[_outermost(name, module_name, summaries)] = device
        else:
            tidy[name] = device
    device_map.clear()
    device_map.update(tidy)
    return device_map


class _Summary:
    """What a map says of the parts of one module."""

    def __init__(self, device: Any) -> None:
        self.device = device
        self.same = True
        self.count = 0

    def add(self, device: Any) -> None:
        self.count += 1
        self.same = self.same and device == self.device


def _outermost(name: str, limit: str, summaries: Mapping[str, _Summary]) -> str:
    """Return the outermost module around `name` of which one device holds, and not of `name` alone."""
    found = name
    for above in _above(name, limit):
        if not summaries[above].same:
            break
        if summaries[above].count > 1:
            found = above
    return found


def _above(name: str, limit: str) -> Iterator[str]:
    """Yield the modules around `name` from inside out, up to `limit`."""
    while name != limit:
        name = name.rpartition(".")[0]
        yield name


def check_device_map(model: torch.nn.Module, device_map: Mapping[str, Any]) -> None:
    """Check that a device map covers a model, and warn about names in it that the model doesn't have.

    Args:
        model: the model.
        device_map: the map.

    Raises:
        ValueError: parameters or buffers of the state dict that the map says nothing about; all are named.
    """
    modules = {name for name, _ in model.named_modules()} | {""}
    tensors = list(state_names(model))
    unknown = sorted(device_map.keys() - modules - {name for name, _ in all_module_tensors(model, recurse=True)})
    if unknown:
        warnings.warn(
            f"The model has nothing called {', '.join(unknown)}: these keys of the device_map have no effect.",
            stacklevel=2,
        )
    missing = [name for name in tensors if not any(part in device_map for part in (name, *_above(name, "")))]
    if missing:
        raise ValueError(_not_covered(missing, unknown, modules))


def _not_covered(missing: list[str], unknown: list[str], modules: Iterable[str]) -> str:
    """Return the error for tensors without a device, with the module that an unknown name was probably meant to be."""
    hints = [(name, nearest(name, modules)) for name in unknown]
    meant = [f"{name!r} is probably meant to be {near!r}" for name, near in hints if near]
    return message(
        given="a device_map that leaves out part of the model",
        why="no entry says where these go: " + ", ".join(missing),
        allowed="names of modules, or of parameters and buffers, that together cover the state dict; '' is all of it",
        do="; ".join(meant) if meant else "add these, or a module that they are in",
    )
