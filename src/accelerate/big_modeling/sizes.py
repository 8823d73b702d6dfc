"""How many bytes the parts of a model take, whatever device it is on, for the dtype it is to be loaded in."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch

from accelerate.big_modeling.units import dtype_byte_size, proper_dtype

Sizes = dict[str, int | float]


def compute_module_sizes(
    model: torch.nn.Module,
    dtype: Any = None,
    special_dtypes: Mapping[str, Any] | None = None,
    buffers_only: bool = False,
) -> Sizes:
    """Return the bytes of every module, parameter and buffer by name; "" is the whole model. Tied ones count once.

    Args:
        model: a model, on any device.
        dtype: what floating-point tensors will be converted to; larger ones than this, smaller ones stay.
        special_dtypes: dtypes of some parameters, by full name.
        buffers_only: count buffers only.
    """
    size_of = sizing(dtype, special_dtypes)
    sizes: Sizes = defaultdict(int)
    for name, tensor in model.named_buffers() if buffers_only else _all_tensors(model):
        size = size_of(name, tensor)
        sizes[""] += size
        end = name.find(".")
        while end != -1:
            sizes[name[:end]] += size
            end = name.find(".", end + 1)
        sizes[name] += size
    return sizes


def compute_module_total_buffer_size(
    model: torch.nn.Module, dtype: Any = None, special_dtypes: Mapping[str, Any] | None = None
) -> int | float:
    """Return the bytes of all buffers; see `compute_module_sizes`."""
    return compute_module_sizes(model, dtype, special_dtypes, buffers_only=True).get("", 0)


def sizing(dtype: Any, special_dtypes: Mapping[str, Any] | None) -> Callable[[str, torch.Tensor], int | float]:
    """Return the function that tells how many bytes a named tensor takes; see `compute_module_sizes`."""
    dtype = None if dtype is None else proper_dtype(dtype)
    limit = None if dtype is None else dtype_byte_size(dtype)
    special = {name: dtype_byte_size(each) for name, each in (special_dtypes or {}).items()}
    known: dict[torch.dtype, int | float] = {}

    def bytes_per_element(own: torch.dtype) -> int | float:
        size = dtype_byte_size(own)
        return size if limit is None or not _is_converted(own) else min(limit, size)

    def size_of(name: str, tensor: torch.Tensor) -> int | float:
        each = special.get(name) if special else None
        if each is None:
            each = known.get(tensor.dtype)
            if each is None:
                each = known[tensor.dtype] = bytes_per_element(tensor.dtype)
        return tensor.numel() * each

    return size_of


def _is_converted(dtype: torch.dtype) -> bool:
    """Whether loading converts tensors of this dtype: integers and booleans are what they are."""
    return dtype.is_floating_point or dtype.is_complex


def _all_tensors(model: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    yield from model.named_parameters()
    yield from model.named_buffers()


def get_module_leaves(module_sizes: Mapping[str, Any]) -> list[str]:
    """Return the names in `module_sizes` that have nothing below them: parameters and buffers, or empty modules."""
    parents = {""} | {name[:end] for name in module_sizes for end in _dots(name)}
    return [name for name in module_sizes if name not in parents]


def _dots(name: str) -> Iterator[int]:
    end = name.find(".")
    while end != -1:
        yield end
        end = name.find(".", end + 1)


def get_max_layer_size(
    modules: Sequence[tuple[str, torch.nn.Module | torch.Tensor]],
    module_sizes: Mapping[str, int | float],
    no_split_module_classes: str | Iterable[str] | None,
) -> tuple[int | float, list[str]]:
    """Return the bytes of the largest part that can't be split, and the names of all parts that large.

    Args:
        modules: named modules, and parameters.
        module_sizes: what `compute_module_sizes` returned for the model.
        no_split_module_classes: names of classes that are not to be split. Modules without children can't be.
    """
    whole = class_names(no_split_module_classes)
    largest: int | float = 0
    names: list[str] = []
    waiting = list(reversed(modules))
    while waiting:
        name, module = waiting.pop()
        children = [] if isinstance(module, torch.Tensor) else list(module.named_children())
        if not children or type(module).__name__ in whole:
            size = module_sizes.get(name, 0)
            if size > largest:
                largest, names = size, [name]
            elif size == largest:
                names.append(name)
            continue
        prefix = f"{name}." if name else ""
        parts: list[Any] = [*module.named_parameters(recurse=False), *children]  # type: ignore[union-attr]
        waiting.extend((prefix + part, each) for part, each in reversed(parts))
    return largest, names


def class_names(no_split_module_classes: str | Iterable[str] | None) -> frozenset[str]:
    """Return names of classes that may be given as one name, several, or None."""
    if no_split_module_classes is None:
        return frozenset()
    return frozenset([no_split_module_classes] if isinstance(no_split_module_classes, str) else no_split_module_classes)


def calculate_maximum_sizes(model: torch.nn.Module) -> tuple[int | float, tuple[int | float, list[str]]]:
    """Return the bytes of a model, and those of its largest layer with its name."""
    sizes = compute_module_sizes(model)
    no_split = getattr(model, "_no_split_modules", None) or []
    return sizes[""], get_max_layer_size(list(model.named_children()), sizes, no_split)
