"""Nested data: lists, tuples, mappings, dataclasses and what `containers` knows, with tensors at the leaves.

Every function returns new containers of the kinds it was given and leaves its input as it is. Leaves have paths such as
`['labels'][0]`, for messages. No communication happens here; `operations` does that.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import torch

from accelerate.base.messages import message
from accelerate.comm.containers import container_of, honor_type, is_namedtuple

__all__ = [
    "concatenate",
    "convert_to_fp32",
    "find_batch_size",
    "find_device",
    "honor_type",
    "ignorant_find_batch_size",
    "is_namedtuple",
    "is_torch_tensor",
    "is_torch_xpu_tensor",
    "leaves",
    "leaves_with_paths",
    "listify",
    "map_tensors",
    "pad_input_tensors",
    "recursively_apply",
    "send_to_device",
    "slice_tensors",
    "with_leaves",
]

T = TypeVar("T")


def is_torch_tensor(tensor: Any) -> bool:
    """Tell whether `tensor` is a torch tensor."""
    return isinstance(tensor, torch.Tensor)


def is_torch_xpu_tensor(tensor: Any) -> bool:
    """Tell whether `tensor` is a torch tensor on an Intel XPU."""
    return isinstance(tensor, torch.Tensor) and tensor.device.type == "xpu"


def leaves(data: Any) -> list[Any]:
    """Return what is not a container, tensors and others, in the order of the containers."""
    found: list[Any] = []
    _collect(data, found)
    return found


def _collect(data: Any, found: list[Any]) -> None:
    kind = container_of(data)
    if kind is None:
        found.append(data)
        return
    for value in kind.values(data):
        if type(value) is torch.Tensor:  # most values are; it saves a call and a look-up each
            found.append(value)
        else:
            _collect(value, found)


def with_leaves(data: T, new: Iterable[Any]) -> T:
    """Return `data` with its leaves replaced by `new`, in the order of :func:`leaves`."""
    return _replace(data, iter(new))


def _replace(data: Any, new: Iterator[Any]) -> Any:
    kind = container_of(data)
    if kind is None:
        return next(new)
    values = [next(new) if type(value) is torch.Tensor else _replace(value, new) for value in kind.values(data)]
    return kind.rebuild(data, values)


def leaves_with_paths(data: Any, path: str = "") -> list[tuple[str, Any]]:
    """Return `(path, leaf)` in the order of :func:`leaves`; the path of a bare leaf is empty."""
    kind = container_of(data)
    if kind is None:
        return [(path, data)]
    parts = zip(kind.labels(data), kind.values(data), strict=True)
    return [found for label, value in parts for found in leaves_with_paths(value, path + label)]


def map_tensors(function: Callable[[torch.Tensor], Any], data: T) -> T:
    """Return `data` with `function` applied to each tensor; other leaves stay."""
    return with_leaves(data, [function(leaf) if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves(data)])


def recursively_apply(
    func: Callable[..., Any],
    data: Any,
    *args: Any,
    test_type: Callable[[Any], bool] = is_torch_tensor,
    error_on_other_type: bool = False,
    **kwargs: Any,
) -> Any:
    """Apply `func(leaf, *args, **kwargs)` to every leaf for which `test_type` holds.

    Args:
        func: what to apply.
        data: nested data.
        args: passed on to `func`.
        test_type: which leaves to apply it to. What is neither list, tuple nor mapping is asked before it is opened.
        error_on_other_type: refuse other leaves instead of leaving them as they are.
        kwargs: passed on to `func`.

    Raises:
        TypeError: a leaf of another type was found and `error_on_other_type` is set.
    """

    def visit(value: Any, path: str) -> Any:
        kind = container_of(value)
        if not isinstance(value, (list, tuple, Mapping)) and test_type(value):
            return func(value, *args, **kwargs)
        if kind is not None:
            parts = zip(kind.labels(value), kind.values(value), strict=True)
            return kind.rebuild(value, [visit(part, path + label) for label, part in parts])
        if error_on_other_type:
            where, kinds = (f"`{getattr(each, '__name__', each)}`" for each in (func, test_type))
            raise TypeError(unsupported(value, path, where, f"unsupported type, as {kinds} says"))
        return value

    return visit(data, "")


def unsupported(value: Any, path: str, where: str, why: str) -> str:
    """Return the message that refuses a leaf: its path, its type, and where it was passed."""
    return message(
        given=f"{type(value)} at data{path}, passed to {where}",
        why=why,
        allowed="nested lists, tuples, dicts and dataclasses of tensors",
        do="take it out of the data, or make it a tensor; Python objects go through `gather_object` and "
        "`broadcast_object_list`",
    )


def send_to_device(
    tensor: T,
    device: torch.device | str | int,
    non_blocking: bool = False,
    skip_keys: str | Sequence[str] | None = None,
) -> T:
    """Return the data on `device`.

    Args:
        tensor: nested data. Objects with a `.to` method are moved by it (a mapping through a copy, so that the one
            given stays where it is); other leaves stay.
        device: where to.
        non_blocking: let the copy overlap with work on the host.
        skip_keys: keys whose values stay where they are, in mappings at every level.
    """
    skipped = frozenset([skip_keys] if isinstance(skip_keys, str) else skip_keys or ())
    return _send(tensor, device, non_blocking, skipped)


def _send(data: Any, device: torch.device | str | int, non_blocking: bool, skipped: frozenset[str]) -> Any:
    if isinstance(data, torch.Tensor):
        return data.to(device, non_blocking=non_blocking)
    if hasattr(data, "to"):
        return _send_object(data, device, non_blocking, skipped)
    kind = container_of(data)
    if kind is None:
        return data
    values = list(kind.values(data))
    keys = list(data.keys()) if skipped and isinstance(data, Mapping) else [None] * len(values)
    pairs = zip(keys, values, strict=True)
    moved = [value if key in skipped else _send(value, device, non_blocking, skipped) for key, value in pairs]
    return kind.rebuild(data, moved)


def _send_object(data: Any, device: torch.device | str | int, non_blocking: bool, skipped: frozenset[str]) -> Any:
    mapping = isinstance(data, Mapping)
    movable = copy.copy(data) if mapping else data  # some, as transformers' BatchEncoding, move themselves in place
    try:
        moved = movable.to(device, non_blocking=non_blocking)
    except TypeError:  # a `.to` that knows no `non_blocking`
        moved = movable.to(device)
    if mapping:
        for key in skipped.intersection(data.keys()):
            moved[key] = data[key]
    return moved


def find_device(data: Any) -> torch.device | None:
    """Return the device of the first tensor in the data, or None."""
    return next((leaf.device for leaf in leaves(data) if isinstance(leaf, torch.Tensor)), None)


def find_batch_size(data: Any) -> int:
    """Return the size of the first dim of the first leaf.

    Raises:
        ValueError: the data is empty, or its first leaf is a single number.
        TypeError: its first leaf is not a tensor.
    """
    kind = container_of(data)
    if kind is not None:
        for value in kind.values(data):
            return find_batch_size(value)
        raise ValueError(f"an empty {type(data).__name__} has no batch size")
    if not isinstance(data, torch.Tensor):
        raise TypeError(f"a {type(data).__name__} has no batch size; the first leaf has to be a tensor")
    if data.dim() == 0:
        raise ValueError("a tensor without dims has no batch size")
    return data.shape[0]


def ignorant_find_batch_size(data: Any) -> int | None:
    """Return the batch size as :func:`find_batch_size` does, or None where it can't be told."""
    try:
        return find_batch_size(data)
    except (ValueError, TypeError):
        return None


def listify(data: Any) -> Any:
    """Return the data with every tensor turned into (nested lists of) Python numbers."""
    return map_tensors(lambda tensor: tensor.detach().cpu().tolist(), data)


def slice_tensors(data: T, tensor_slice: Any, process_index: int | None = None, num_processes: int | None = None) -> T:
    """Return the data with every tensor indexed by `tensor_slice` along its first dim; single numbers stay whole.

    `process_index` and `num_processes` belong to the public signature; a slice already says what they would.
    """
    return map_tensors(lambda tensor: tensor[tensor_slice] if tensor.dim() else tensor, data)


def concatenate(data: Sequence[Any], dim: int = 0) -> Any:
    """Join several data of the same structure, leaf by leaf.

    Args:
        data: at least one; the containers of the first are those of the result.
        dim: the tensor dim to join along.

    Raises:
        TypeError: a leaf is not a tensor.
        ValueError: there is nothing to join, or the structures differ.
    """
    if not data:
        raise ValueError("there is nothing to concatenate")
    first = data[0]
    if isinstance(first, torch.Tensor):
        return torch.cat(list(data), dim=dim)
    kind = container_of(first)
    if kind is None:
        raise TypeError(f"a {type(first).__name__} can't be concatenated; leaves have to be tensors")
    labels = list(kind.labels(first))
    parts = [dict(zip(kind.labels(each), kind.values(each), strict=True)) for each in data]  # keys in any order
    if any(each.keys() != parts[0].keys() for each in parts):
        raise ValueError(f"data of different structures can't be concatenated: {[''.join(each) for each in parts]}")
    return kind.rebuild(first, [concatenate([each[label] for each in parts], dim) for label in labels])


def pad_input_tensors(tensor: Any, batch_size: int, num_processes: int, dim: int = 0) -> Any:
    """Return the data with zeros appended, so that `num_processes` divides the batch.

    Args:
        tensor: nested data of tensors.
        batch_size: the size of their dim `dim`.
        num_processes: what the batch is to be divided by.
        dim: the batch dim.

    Raises:
        TypeError: a leaf is not a tensor.
    """
    goal = batch_size + -batch_size % num_processes

    def pad(each: torch.Tensor) -> torch.Tensor:
        shape = list(each.shape)
        if shape[dim] >= goal:
            return each
        shape[dim] = goal - shape[dim]
        return torch.cat([each, each.new_zeros(shape)], dim=dim)

    return recursively_apply(pad, tensor, error_on_other_type=True)


def convert_to_fp32(tensor: T) -> T:
    """Return the data with its fp16 and bf16 tensors in fp32; all else stays."""
    return map_tensors(lambda each: each.float() if each.dtype in (torch.float16, torch.bfloat16) else each, tensor)
