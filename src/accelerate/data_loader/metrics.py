"""Results of all ranks put together, each sample once.

The last step of a loader may hold samples that were repeated to keep the ranks even. How many are real travels with the
pass (`Pass.tail`), rank by rank, so they are cut out exactly, whatever is gathered: tensors, lists of anything, and
nested structures of both.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import torch

from accelerate.base.messages import message, warn_once
from accelerate.comm import operations
from accelerate.comm.collectives import Collectives
from accelerate.comm.containers import container_of, is_namedtuple
from accelerate.comm.tree import leaves
from accelerate.data_loader.dealing import Tail
from accelerate.data_loader.iteration import Pass
from accelerate.state.gradient import GradientState, Iteration


def gather_for_metrics(
    collectives: Collectives, gradient_state: GradientState, data: Any, use_gather_object: bool = False
) -> Any:
    """Return the results of all ranks in rank order, without those of repeated samples.

    Args:
        collectives: the ranks.
        gradient_state: knows the loader that yielded last, whose samples `data` is about.
        data: nested results. Tensors `[batch, ...]` are concatenated along their first dim; those without dims give
            one value per rank. A list or tuple without tensors is taken as one item per sample; mappings, named tuples
            and dataclasses are structures of such columns. Anything else is one value per rank, and becomes a list.
        use_gather_object: send tensors as objects too, so that they may have any shape: rows become list items, and
            every list is taken as one item per sample.

    Returns:
        The same structure on every rank; with one process `data` itself.

    Raises:
        RuntimeError: some ranks have no batch in this step (`even_batches=False`), so they can't take part.
    """
    if collectives.world_size == 1:
        return data
    active = gradient_state.active
    tail = current_tail(active)
    ragged = isinstance(active, Pass) and active.ragged
    plain = tail is None and not ragged and not use_gather_object
    if plain and all(isinstance(leaf, torch.Tensor) for leaf in leaves(data)):
        return operations.gather(collectives, data)
    columns: list[Any] = []
    find_columns(data, use_gather_object, columns)
    tensors = [each for each in columns if isinstance(each, torch.Tensor) and not use_gather_object]
    objects = [each for each in columns if use_gather_object or not isinstance(each, torch.Tensor)]
    gather_tensors = gather_ragged if ragged or (tail is not None and tail.is_ragged) else gather_even
    from_tensors = iter(gather_tensors(collectives, tensors, tail))
    from_objects = iter(gather_objects(collectives, objects, tail))
    both = (
        next(from_tensors if isinstance(each, torch.Tensor) and not use_gather_object else from_objects)
        for each in columns
    )
    return replace_columns(data, use_gather_object, both)


def current_tail(active: Iteration | None) -> Tail | None:
    """Return what is real in the present step; None where everything is, or nobody knows.

    Raises:
        RuntimeError: some ranks have no batch in this step.
    """
    if not isinstance(active, Pass):
        at_end = active is not None and active.end_of_dataloader and active.remainder > 0
        return Tail((), active.remainder) if active is not None and at_end else None
    if active.tail is not None and active.tail.absent:
        raise RuntimeError(
            message(
                given="gather_for_metrics in the last step of a loader prepared with even_batches=False",
                why=f"ranks {list(active.tail.absent)} have no batch left, so they would be waited for in vain",
                allowed="gathering in steps that all ranks take part in",
                do="prepare the loader with even_batches=True (repeated samples are left out of the result), "
                "or collect results in a list and gather it after the loop with `gather_object`",
            )
        )
    return active.tail


def find_columns(data: Any, as_objects: bool, found: list[Any]) -> None:
    """Append the columns of nested results to `found`: tensors, lists of items, and single values."""
    kind = None if is_column(data, as_objects) else container_of(data)
    if kind is None:
        found.append(data)
    else:
        for value in kind.values(data):
            find_columns(value, as_objects, found)


def replace_columns(data: Any, as_objects: bool, new: Iterator[Any]) -> Any:
    """Return nested results with new columns, in the order of :func:`find_columns`."""
    kind = None if is_column(data, as_objects) else container_of(data)
    if kind is None:
        return next(new)
    return kind.rebuild(data, [replace_columns(value, as_objects, new) for value in kind.values(data)])


def is_column(data: Any, as_objects: bool) -> bool:
    """Tell whether a list or tuple holds one item per sample, rather than one column per place."""
    if not isinstance(data, (list, tuple)) or is_namedtuple(data):
        return False
    if as_objects:
        return True
    columns: tuple[type, ...] = (torch.Tensor, np.ndarray)
    if isinstance(data, tuple):
        columns = (*columns, list, tuple, dict)
    return not any(isinstance(item, columns) for item in data)


def gather_even(collectives: Collectives, tensors: list[torch.Tensor], tail: Tail | None) -> list[torch.Tensor]:
    """Gather tensors of the same shape on every rank and cut out repeated samples."""
    gathered = operations.gather(collectives, tensors)
    if tail is None:
        return gathered
    if not tail.counts:
        return [each[: tail.remainder] for each in gathered]
    rows = [tensor.shape[0] if tensor.dim() else 1 for tensor in tensors]
    return [cut(each.split(size) if size else [each], tail) for each, size in zip(gathered, rows, strict=True)]


def gather_ragged(collectives: Collectives, tensors: list[torch.Tensor], tail: Tail | None) -> list[torch.Tensor]:
    """Gather tensors whose first dim differs between ranks, and leave out ranks whose batch is a repetition."""
    if not tensors:
        return []
    tensors = [tensor if tensor.dim() else tensor.unsqueeze(0) for tensor in tensors]
    rows = torch.tensor([tensor.shape[0] for tensor in tensors], device=collectives.device)
    sizes = collectives.all_gather(rows).T.tolist()
    gathered = operations.gather(collectives, operations.pad_across_processes(collectives, tensors))
    parts = [each.chunk(collectives.world_size) for each in gathered]
    trimmed = [[part[:size] for part, size in zip(*both, strict=True)] for both in zip(parts, sizes, strict=True)]
    return [torch.cat(each) if tail is None else cut(each, tail) for each in trimmed]


def gather_objects(collectives: Collectives, columns: list[Any], tail: Tail | None) -> list[Any]:
    """Gather columns of anything that pickles and cut out repeated samples."""
    if not columns:
        return []
    everyone = collectives.all_gather_object([as_items(column) for column in columns])
    return [join(column, list(parts), tail) for column, parts in zip(columns, zip(*everyone, strict=True), strict=True)]


def as_items(column: Any) -> Any:
    """Return a column as a sequence with one item per sample; a single value as a list of itself."""
    if isinstance(column, np.ndarray) and column.ndim:
        return column
    if isinstance(column, torch.Tensor):
        return list(column.cpu()) if column.dim() else [column.cpu()]
    if isinstance(column, (str, bytes)) or not isinstance(column, Iterable):
        return [column]
    return list(column)


def join(column: Any, parts: list[Any], tail: Tail | None) -> Any:
    """Return the items of all ranks in a sequence of the kind of `column`."""
    if tail is not None and not tail.counts:
        return [item for part in parts for item in part][: tail.remainder]
    if tail is not None:
        parts = [
            part[: kept(len(part), count, tail)] for part, count in zip(parts, spread(tail, len(parts)), strict=True)
        ]
    if isinstance(column, np.ndarray) and column.ndim:
        return np.concatenate(parts)
    items = [item for part in parts for item in part]
    return tuple(items) if isinstance(column, tuple) else items


def cut(parts: Sequence[torch.Tensor], tail: Tail) -> torch.Tensor:
    """Concatenate the real rows of every rank's part."""
    counts = spread(tail, len(parts))
    return torch.cat([part[: kept(len(part), count, tail)] for part, count in zip(parts, counts, strict=True)])


def spread(tail: Tail, num_ranks: int) -> list[int | None]:
    """Return the count of each of `num_ranks` ranks; where several read the same share, each has its count."""
    return [tail.counts[rank * len(tail.counts) // num_ranks] for rank in range(num_ranks)]


def kept(rows: int, count: int | None, tail: Tail) -> int:
    """Return how many of a rank's rows are about real samples: a whole number of rows per sample, or one per rank."""
    if count is None or rows == 0:
        return rows
    if count == 0:
        return 0
    if tail.share is None or rows == 1:
        return rows
    if rows % tail.share == 0:
        return rows // tail.share * count
    warn_once(
        f"gather_for_metrics was given {rows} rows for a batch of {tail.share} samples, {tail.share - count} of which "
        "are repeated: it can't tell which rows are theirs and keeps all. Pass one row (or a fixed number) per sample."
    )
    return rows
