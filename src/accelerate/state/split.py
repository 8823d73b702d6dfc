"""Sharing out data between processes: which part of a list, tensor, table of columns or dataset belongs to a rank.

The first `length % world_size` ranks get one item more than the others. Nothing is changed in place, nothing is moved
between devices, and no process talks to another: every rank holds all inputs and takes its part of them.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from accelerate.base.messages import message, warn_once

DIVISIBLE = "lists, tuples, ranges, tensors, numpy arrays, datasets.Dataset, and dictionaries (nested too) of these"


@dataclass(frozen=True)
class Share:
    """Which items belong to one rank: those from `start` to `stop`, and once more the very last when `repeats_last`."""

    start: int
    stop: int
    repeats_last: bool = False


def share_of(length: int, rank: int, world_size: int, apply_padding: bool = False) -> Share:
    """Return the share of `rank`; with padding all ranks get equally many, unless there is nothing to repeat."""
    whole, extra = divmod(length, world_size)
    start = rank * whole + min(rank, extra)
    return Share(start, start + whole + (rank < extra), apply_padding and rank >= extra > 0)


def split(inputs: Any, rank: int, world_size: int, apply_padding: bool = False) -> Any:
    """Return the part of `inputs` that belongs to `rank`, of the same type (a list, of a range).

    Args:
        inputs: items in a list, tuple, range, tensor or numpy array (along dimension 0) or `datasets.Dataset`, or
            columns of equal length in a dictionary or named tuple, nested as one likes. One process gets `inputs`
            itself. Anything else can't be divided, so every process gets the whole, with a warning.
        apply_padding: repeat the last item where a rank would have one less than others.

    Raises:
        ValueError: columns of different lengths.
        TypeError: a column that can't be divided.
    """
    if world_size == 1:
        return inputs
    if not _has_columns(inputs) and _length(inputs) is None:
        warn_once(
            f"split_between_processes can't divide a {type(inputs).__name__}, so every process gets the whole of it. "
            f"What it divides: {DIVISIBLE}.",
            stacklevel=4,
        )
        return inputs
    length = _common_length(inputs)
    share = share_of(length, rank, world_size, apply_padding)
    return _map_columns(lambda column: _take(column, share), inputs)


def _has_columns(data: Any) -> bool:
    """Whether `data` is a table of columns rather than a row of items."""
    return isinstance(data, Mapping) or (isinstance(data, tuple) and hasattr(data, "_fields"))


def _map_columns(function: Callable[[Any], Any], data: Any) -> Any:
    """Return `data` with `function` applied to its columns, in new containers of the same kinds."""
    if not _has_columns(data):
        return function(data)
    if isinstance(data, tuple):
        return type(data)(*(_map_columns(function, column) for column in data))
    result = copy.copy(data) if isinstance(data, MutableMapping) else {}
    for name, column in data.items():
        result[name] = _map_columns(function, column)
    return result


def _columns(data: Any, path: str = "inputs") -> Iterator[tuple[str, Any]]:
    """Yield every column with the expression that reaches it."""
    if isinstance(data, Mapping):
        for name, column in data.items():
            yield from _columns(column, f"{path}[{name!r}]")
    elif _has_columns(data):
        for name, column in zip(data._fields, data, strict=True):
            yield from _columns(column, f"{path}.{name}")
    else:
        yield path, data


def _common_length(inputs: Any) -> int:
    """Return how many items every column has."""
    lengths = {path: _length(column) for path, column in _columns(inputs)}
    undivided = [path for path, length in lengths.items() if length is None]
    if undivided:
        raise TypeError(
            message(
                given=f"columns that can't be divided: {', '.join(undivided)}",
                why="each process takes its part of every column",
                allowed=DIVISIBLE,
                do="leave these entries out of what is split and pass them to every process as they are",
            )
        )
    if len(set(lengths.values())) > 1:
        raise ValueError(
            message(
                given=", ".join(f"{path} of length {length}" for path, length in lengths.items()),
                why="items are shared out by position, so columns of different lengths would come apart",
                allowed="columns with equally many items",
                do="pad or cut the columns to one length, or split them one by one",
            )
        )
    return next(iter(lengths.values()), 0) or 0


def _length(column: Any) -> int | None:
    """Return how many items a column has, or None for what can't be divided."""
    if isinstance(column, torch.Tensor | np.ndarray):
        return len(column) if column.ndim else None
    return len(column) if isinstance(column, list | tuple | range) or _is_dataset(column) else None


def _is_dataset(data: Any) -> bool:
    """Whether `data` is a `datasets.Dataset`; nobody has one unless that library is loaded."""
    kind = getattr(sys.modules.get("datasets"), "Dataset", None)
    return kind is not None and isinstance(data, kind)


def _take(column: Any, share: Share) -> Any:
    """Return the share of one column."""
    if _is_dataset(column):
        last = [len(column) - 1] if share.repeats_last else []
        return column.select([*range(share.start, share.stop), *last])
    column = list(column) if isinstance(column, range) else column
    part = column[share.start : share.stop]
    if not share.repeats_last:
        return part
    if isinstance(column, torch.Tensor):
        return torch.cat([part, column[-1:]])
    return np.concatenate([part, column[-1:]]) if isinstance(column, np.ndarray) else part + column[-1:]
