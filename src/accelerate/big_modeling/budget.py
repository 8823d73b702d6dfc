"""How much of a model each device may hold: what is free, what the user allows, and an even share of it."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Any

import torch

from accelerate.base.messages import did_you_mean, message
from accelerate.big_modeling.sizes import class_names, compute_module_sizes
from accelerate.big_modeling.units import convert_file_size_to_int
from accelerate.devices.device import Device, build_device
from accelerate.devices.select import default_device
from accelerate.devices.specs import CPU

logger = logging.getLogger("accelerate.utils.modeling")

#: Devices that are named, in the order in which they are filled, after those that are numbered.
NAMED = ("mps", "cpu", "disk")

#: What a device without limit by the user leaves free, and the margin on an even share for layers that don't divide.
KEPT_FREE = 0.9
MARGIN = 1.25

Budget = dict[int | str, int]


def get_max_memory(max_memory: Mapping[int | str, int | str] | None = None) -> Budget:
    """Return how many bytes of weights each device may hold, in the order in which devices are filled.

    Args:
        max_memory: by device: a number for an accelerator, "mps", "cpu" or "disk"; bytes, or text such as "10GiB". By
            default what is free now on every device.

    Raises:
        ValueError: a device that doesn't exist as such, or a size that is none.
    """
    if max_memory is None:
        return _free()
    budget = as_budget(max_memory)
    numbered = [device for device in budget if isinstance(device, int)]
    if numbered:
        _warn_unavailable(numbered)
    return budget


def as_budget(max_memory: Mapping[int | str, int | str]) -> Budget:
    """Return a budget in bytes, in the order in which devices are filled, whether this machine has them or not.

    Raises:
        ValueError: a device that doesn't exist as such, or a size that is none.
    """
    budget = {device: convert_file_size_to_int(size) for device, size in max_memory.items()}
    unknown = [device for device in budget if not isinstance(device, int) and device not in NAMED]
    if unknown:
        raise ValueError(_not_a_device(unknown[0]))
    numbered = sorted(device for device in budget if isinstance(device, int))
    return {device: budget[device] for device in (*numbered, *NAMED) if device in budget}


def _free() -> Budget:
    """Return the bytes that are free on every device of this machine."""
    device = default_device()
    host = build_device(CPU).free_memory()
    if device.spec is CPU:
        return {"cpu": host}
    if device.spec.name == "mps":
        return {"mps": device.free_memory()}  # the memory of the CPU is the same memory
    free: Budget = {index: device.free_memory(index) for index in range(device.count())}
    return free if _is_integrated(device) else {**free, "cpu": host}


def _is_integrated(device: Device) -> bool:
    """Whether the accelerator has no memory of its own, so that what the CPU has free is the same memory."""
    asked = getattr(device.module, "get_device_properties", None)
    return asked is not None and bool(getattr(asked(0), "is_integrated", False))


def _warn_unavailable(numbered: list[int]) -> None:
    device = default_device()
    there = [] if device.spec is CPU else list(range(device.count()))
    for index in numbered:
        if index not in there:
            logger.warning(f"max_memory has a budget for device {index}, which this machine lacks; it has {there}.")


def _not_a_device(device: Any) -> str:
    return message(
        given=f"device {device!r} in max_memory",
        why="accelerators go by their number, and few devices have names",
        allowed="integers for accelerators, 'mps', 'cpu' and 'disk'",
        do=f"write {device.split(':')[1]} for {device!r}"
        if isinstance(device, str) and device.rpartition(":")[2].isdigit()
        else did_you_mean(str(device), NAMED),
    )


def get_balanced_memory(
    model: torch.nn.Module,
    max_memory: Mapping[int | str, int | str] | None = None,
    no_split_module_classes: str | Iterable[str] | None = None,
    dtype: Any = None,
    special_dtypes: Mapping[str, Any] | None = None,
    low_zero: bool = False,
) -> Budget:
    """Return budgets that spread a model evenly over the accelerators.

    Args:
        model: the model, on any device.
        max_memory: upper limits, see `get_max_memory`.
        no_split_module_classes: names of classes that are not to be split.
        dtype: see `compute_module_sizes`.
        special_dtypes: see `compute_module_sizes`.
        low_zero: put as little as possible on the first accelerator, which then has room for other work.
    """
    budget = get_max_memory(max_memory)
    accelerators = _accelerators(budget)
    if len(accelerators) == 1 and max_memory is None:
        budget[accelerators[0]] = int(budget[accelerators[0]] * KEPT_FREE)
    return balance(model, budget, no_split_module_classes, dtype, special_dtypes, low_zero)


def _accelerators(budget: Budget) -> list[int]:
    return [device for device, size in budget.items() if isinstance(device, int) and size > 0]


def balance(
    model: torch.nn.Module,
    budget: Budget,
    no_split_module_classes: str | Iterable[str] | None,
    dtype: Any = None,
    special_dtypes: Mapping[str, Any] | None = None,
    low_zero: bool = False,
) -> Budget:
    """Return a budget that spreads a model evenly over the accelerators in `budget`; see `get_balanced_memory`."""
    accelerators = _accelerators(budget)
    if len(accelerators) < 2:
        return budget
    budget = dict(budget)
    sizes = compute_module_sizes(model, dtype, special_dtypes)
    first, last = accelerators[0], accelerators[-1]
    share = int(sizes[""] // (len(accelerators) - low_zero) + _margin(model, sizes, no_split_module_classes))
    for device in accelerators:
        if device != last and not (low_zero and device == first):
            budget[device] = min(share, budget[device])
    if low_zero:
        others = sum(budget[device] for device in accelerators[1:])
        budget[first] = min(budget[first], int(max(0, sizes[""] - others)))
    return budget


def _margin(
    model: torch.nn.Module, sizes: Mapping[str, int | float], no_split_module_classes: str | Iterable[str] | None
) -> int:
    """Return what a share has on top, since blocks don't divide evenly: as much as a large block, and a quarter."""
    whole = class_names(no_split_module_classes)
    modules = dict(model.named_modules())
    blocks = [sizes.get(name, 0) for name, each in modules.items() if name and type(each).__name__ in whole]
    holders = [sizes.get(name, 0) for name, each in modules.items() if _holds_tensors(each)]
    mean = int(sum(holders) / len(holders)) if holders else 0
    return int(MARGIN * max([mean, *blocks]))


def _holds_tensors(module: torch.nn.Module) -> bool:
    return any(each is not None for each in (*module._parameters.values(), *module._buffers.values()))
