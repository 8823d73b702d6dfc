"""Gather, reduce, broadcast and pad, for anything nested and in as few collectives as there can be.

All tensors of a nested structure travel together (see `packing`). Structure and dtypes are the same on every rank and
those of the input. With one process nothing travels, and what was given is returned as it is.

What can't be communicated is refused before anything is sent, by the path of the leaf: where every rank has such a
leaf, every rank raises. Where only some have it, the others are left waiting for them; in debug mode the ranks agree
first (`verify`), so that all raise.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from typing import Any, TypeVar

import torch

from accelerate._lazy import lazy_module
from accelerate.base.messages import did_you_mean, message, warn_once
from accelerate.comm.collectives import Collectives, Reduction, check_reducible
from accelerate.comm.packing import broadcast_many, gather_many, gather_one, reduce_many
from accelerate.comm.tree import leaves, leaves_with_paths, unsupported, with_leaves

# The checks of debug mode are imported by runs in debug mode.
verify = lazy_module("accelerate.comm.verify")

T = TypeVar("T")

REDUCTIONS: dict[str, Reduction] = {"sum": "sum", "mean": "mean", "max": "max", "min": "min", "none": "sum"}


class CannotPadNestedTensorWarning(UserWarning):
    """A nested tensor has no one size to pad to, and was left as it is."""


def gather(collectives: Collectives, data: Any) -> Any:
    """Concatenate every tensor over all ranks, along its first dim.

    Args:
        collectives: the ranks.
        data: nested data of tensors with the same shapes on all ranks. A tensor without dims becomes one of
            `[world_size]`; a DTensor counts as the whole that it stands for. No gradient flows through.

    Returns:
        The same structure on every rank, on the device of the collectives; with one process `data` itself.

    Raises:
        TypeError: a leaf can't be gathered; its path and type are named.
        DistributedOperationException: in debug mode, the ranks disagree.
    """
    if collectives.world_size == 1:
        return data
    if collectives.debug:
        verify.verify(collectives, "gather", data)
    if type(data) is torch.Tensor and _obstacle(data) is None:
        return gather_one(collectives, data)
    return with_leaves(data, gather_many(collectives, _tensors(data, "gather")))


def reduce(collectives: Collectives, data: Any, reduction: str = "mean", scale: float = 1.0) -> Any:
    """Combine every tensor over all ranks, element by element.

    Args:
        collectives: the ranks.
        data: nested data of tensors with the same shapes on all ranks.
        reduction: "mean", "sum", "max" or "min" ("none" is "sum"). The dtype stays: the mean of integers is the
            nearest integer, the sum of booleans tells whether any is true, and their mean is refused.
        scale: what the result is multiplied with; XLA only.

    Returns:
        New tensors in the same structure, on the device of the collectives. A gradient flows to this rank's part.

    Raises:
        ValueError: `reduction` is unknown.
        TypeError: a leaf is no tensor, or has no such reduction.
        DistributedOperationException: in debug mode, the ranks disagree.
    """
    op = _reduction(reduction)
    if scale != 1.0 and not collectives.applies_scale:
        warn_once(f"reduce(scale={scale}) has an effect on XLA devices only; here the result is not scaled.")
    if collectives.debug and collectives.world_size > 1:
        verify.verify(collectives, "reduce", data, arguments=op)
    tensors = [data] if type(data) is torch.Tensor and _obstacle(data) is None else _tensors(data, "reduce")
    if collectives.world_size == 1:
        return with_leaves(data, [tensor.clone() for tensor in tensors])
    for tensor in tensors:
        check_reducible(tensor.dtype, op)
    results = reduce_many(collectives, tensors, op)
    if scale != 1.0 and collectives.applies_scale:
        results = [(result * scale).to(result.dtype) for result in results]
    return with_leaves(data, results)


def broadcast(collectives: Collectives, data: Any, from_process: int = 0) -> Any:
    """Give every rank the tensors of one of them, in place.

    Args:
        collectives: the ranks.
        data: nested data of tensors with the same shapes on all ranks; the tensors of the others are overwritten.
        from_process: the rank whose tensors all get.

    Returns:
        The same structure, with the same tensors in it; with one process `data` itself.

    Raises:
        ValueError: there is no such rank.
        TypeError: a leaf can't be broadcast; its path and type are named.
        DistributedOperationException: in debug mode, the ranks disagree.
    """
    _check_rank(collectives, from_process)
    if collectives.world_size == 1:
        return data
    if collectives.debug:
        verify.verify(collectives, "broadcast", data, arguments=f"from_process={from_process}")
    if type(data) is torch.Tensor and _obstacle(data) is None:
        collectives.broadcast(data, from_process)
    else:
        broadcast_many(collectives, _tensors(data, "broadcast", shards=False), from_process)
    return data


def pad_across_processes(
    collectives: Collectives, data: T, dim: int = 0, pad_index: float = 0, pad_first: bool = False
) -> T:
    """Pad every tensor to its largest size over all ranks, so that it can be gathered.

    Args:
        collectives: the ranks.
        data: nested data of tensors that differ between ranks in dim `dim` only.
        dim: the dim to pad; a tensor that has no such dim stays as it is.
        pad_index: what to pad with. Booleans are padded with False, unless it is 1.
        pad_first: pad at the start.

    Returns:
        The same structure; tensors which are large enough already are the ones given.

    Raises:
        TypeError: a leaf is no tensor.
        ValueError: `pad_index` is no value of an integer tensor's dtype.
        DistributedOperationException: in debug mode, the ranks disagree.
    """
    several = collectives.world_size > 1
    if several and collectives.debug:
        verify.verify(collectives, "pad_across_processes", data, arguments=f"dim={dim}", sizes=False)
    found = leaves(data)
    own = [_size_to_pad(data, index, leaf, dim, pad_index) for index, leaf in enumerate(found)]
    if not several or not found:
        return data
    largest = collectives.all_gather(torch.tensor(own, device=collectives.device)).amax(0).tolist()
    return with_leaves(
        data,
        [
            leaf if size in (-1, goal) else _pad(leaf, dim, goal, pad_index, pad_first)
            for leaf, size, goal in zip(found, own, largest, strict=True)
        ],
    )


def gather_object(collectives: Collectives, obj: Any) -> Any:
    """Collect the items of every rank's iterable in one list.

    Args:
        collectives: the ranks.
        obj: an iterable of picklable items, of any length.

    Returns:
        All items, in rank order, the same on every rank; with one process `obj` itself.

    Raises:
        TypeError: the object of one of the ranks can't be iterated over; raised on every rank.
    """
    if collectives.world_size == 1:
        return obj
    if collectives.debug:
        verify.verify_call(collectives, "gather_object")
    everyone = collectives.all_gather_object(obj)
    for rank, each in enumerate(everyone):
        if not isinstance(each, Iterable):
            raise TypeError(
                message(
                    given=f"{type(each)} on process {rank}",
                    why="gathered objects are lists of items, one after the other, and this one has no items",
                    allowed="a list (or another iterable) on every process",
                    do="put it in a list: `gather_object([value])`",
                )
            )
    return [item for each in everyone for item in each]


def broadcast_object_list(collectives: Collectives, object_list: list[Any], from_process: int = 0) -> list[Any]:
    """Give every rank the objects of one of them, in place.

    Args:
        collectives: the ranks.
        object_list: a list; those of the other ranks are overwritten.
        from_process: the rank whose picklable objects all get.

    Returns:
        `object_list` itself.

    Raises:
        ValueError: there is no such rank.
    """
    _check_rank(collectives, from_process)
    if collectives.world_size == 1:
        return object_list
    if collectives.debug:
        verify.verify_call(collectives, "broadcast_object_list", arguments=f"from_process={from_process}")
    objects = collectives.broadcast_object(object_list, from_process)
    if collectives.rank != from_process:
        object_list[:] = objects
    return object_list


def _tensors(data: Any, where: str, shards: bool = True) -> list[torch.Tensor]:
    """Return the leaves, as tensors that can be sent; refuse the first that can't."""
    found = leaves(data)
    for index, leaf in enumerate(found):
        why = _obstacle(leaf)
        if why is None and type(leaf) is not torch.Tensor and hasattr(leaf, "full_tensor"):  # a DTensor
            if shards:
                found[index] = leaf.full_tensor()
            else:
                why = "it is a DTensor, spread over ranks already"
        if why is not None:
            path, _ = leaves_with_paths(data)[index]
            raise TypeError(unsupported(leaf, path, f"`{where}`", why))
    return found


def _obstacle(leaf: Any) -> str | None:
    """Return why a leaf can't be sent, or None."""
    if not isinstance(leaf, torch.Tensor):
        return "unsupported type"
    if leaf.is_nested or leaf.layout is not torch.strided:
        return "a nested or sparse tensor does not have the same layout on every rank"
    if leaf.is_meta:
        return "a meta tensor holds no data"
    return None


def _reduction(name: str) -> Reduction:
    if name not in REDUCTIONS:
        raise ValueError(
            message(
                given=f"reduction={name!r}",
                why="there is no such reduction",
                allowed=", ".join(map(repr, REDUCTIONS)),
                do=did_you_mean(str(name), REDUCTIONS),
            )
        )
    return REDUCTIONS[name]


def _check_rank(collectives: Collectives, rank: int) -> None:
    if not 0 <= rank < collectives.world_size:
        raise ValueError(
            message(
                given=f"from_process={rank}",
                why=f"there are {collectives.world_size} processes",
                allowed=f"0 to {collectives.world_size - 1}",
                do="name the process whose values all others are to get",
            )
        )


def _size_to_pad(data: Any, index: int, leaf: Any, dim: int, pad_index: float) -> int:
    """Return the size of the leaf's dim `dim`, or -1 when the leaf is to stay as it is."""
    if isinstance(leaf, torch.Tensor) and leaf.is_nested:
        text = "Cannot pad nested tensors without more information. Leaving unprocessed."
        warnings.warn(text, CannotPadNestedTensorWarning, stacklevel=3)
        return -1
    if not isinstance(leaf, torch.Tensor) or leaf.layout is not torch.strided:
        path, _ = leaves_with_paths(data)[index]
        raise TypeError(unsupported(leaf, path, "`pad_across_processes`", "only dense tensors can be padded"))
    if not -leaf.dim() <= dim < leaf.dim():
        return -1
    if pad_index != 0 and not _holds(leaf.dtype, pad_index):
        path, _ = leaves_with_paths(data)[index]
        raise ValueError(
            message(
                given=f"pad_index={pad_index} for {leaf.dtype} at data{path}",
                why="it is no value of that dtype, and padding keeps the dtype",
                allowed="a value that every integer tensor can hold",
                do="convert the tensor first, or pad it in a call of its own",
            )
        )
    return leaf.shape[dim]


def _holds(dtype: torch.dtype, value: float) -> bool:
    if dtype is torch.bool or dtype.is_floating_point or dtype.is_complex:
        return True
    limits = torch.iinfo(dtype)
    return float(value).is_integer() and limits.min <= value <= limits.max


def _pad(tensor: torch.Tensor, dim: int, size: int, pad_index: float, pad_first: bool) -> torch.Tensor:
    """Return a copy of the tensor with `size` elements along `dim`."""
    shape = list(tensor.shape)
    own, shape[dim] = shape[dim], size
    value = pad_index == 1 if tensor.dtype is torch.bool else pad_index
    padded = tensor.new_full(shape, value)
    padded.narrow(dim, size - own if pad_first else 0, own).copy_(tensor)
    return padded
