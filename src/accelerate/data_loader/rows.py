"""The rows of a nested batch: one per sample, in every tensor and every list that has an item per sample.

A list of columns (what torch's collate function makes of tuples) and a list of samples look alike; one that holds a
tensor with a row per sample is taken for the former.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any

import torch

from accelerate.comm.containers import container_of, is_namedtuple


def num_rows(batch: Any) -> int | None:
    """Return the number of samples in a batch: the size of its first tensor, else of its first list; None without."""
    found = _first(batch, _is_sized_tensor)
    if found is None:
        found = _first(batch, _is_list)
    return None if found is None else len(found)


def take_rows(batch: Any, rows: slice, size: int) -> Any:
    """Return a batch of `size` rows with some of them; what has another size is kept as it is."""
    return _replace(batch, size, (column[rows] for column in _columns(batch, size)))


def join_rows(batches: Sequence[Any]) -> Any | None:
    """Return one batch with the rows of several; None when their columns do not fit together."""
    sizes = [num_rows(batch) for batch in batches]
    if None in sizes:
        return None
    tables = [_columns(batch, size) for batch, size in zip(batches, sizes, strict=True) if size is not None]
    if len({len(table) for table in tables}) > 1:
        return None
    joined = [_joined(columns) for columns in zip(*tables, strict=True)]
    return None if any(column is None for column in joined) else _replace(batches[0], sizes[0], iter(joined))


def _joined(columns: Sequence[Any]) -> Any | None:
    """Return the rows of several columns in one, or None."""
    if all(isinstance(column, torch.Tensor) for column in columns):
        fit = len({(column.shape[1:], column.dtype) for column in columns}) == 1
        return torch.cat(list(columns)) if fit else None
    if any(isinstance(column, torch.Tensor) for column in columns):
        return None
    return type(columns[0])(chain(*columns))


def _columns(data: Any, size: int) -> list[Any]:
    return _find(data, lambda value: _is_column(value, size))


def _first(data: Any, wanted: Any) -> Any | None:
    """Return the first of what :func:`_find` returns; None where that is nothing."""
    if wanted(data):
        return data
    kind = container_of(data)
    found = () if kind is None else (_first(value, wanted) for value in kind.values(data))
    return next((each for each in found if each is not None), None)


def _find(data: Any, wanted: Any) -> list[Any]:
    """Return what is `wanted` in nested data, from the outside in."""
    if wanted(data):
        return [data]
    kind = container_of(data)
    return [] if kind is None else [found for value in kind.values(data) for found in _find(value, wanted)]


def _replace(data: Any, size: int | None, new: Iterator[Any]) -> Any:
    """Return nested data with other columns in the place of those of `size` rows."""
    if _is_column(data, size):
        return next(new)
    kind = container_of(data)
    return data if kind is None else kind.rebuild(data, [_replace(value, size, new) for value in kind.values(data)])


def _is_column(data: Any, size: int | None) -> bool:
    if _is_list(data):
        return len(data) == size and not any(_is_sized_tensor(item) and len(item) == size for item in data)
    return _is_sized_tensor(data) and len(data) == size


def _is_sized_tensor(data: Any) -> bool:
    return isinstance(data, torch.Tensor) and data.dim() > 0


def _is_list(data: Any) -> bool:
    return isinstance(data, (list, tuple)) and not is_namedtuple(data)
