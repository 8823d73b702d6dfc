"""What each rank gets of the batches that rank 0 reads for all.

Where batches are dealt in turn, every rank gets one as it was read, of any shape. Where a batch is short (at the end of
the data or of a worker), the rows of the round are spread evenly and completed with rows of the first one, if their
shapes allow it; otherwise whole batches are repeated.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import cycle, islice
from typing import Any

from accelerate.base.messages import message
from accelerate.data_loader.dealing import Tail
from accelerate.data_loader.rows import join_rows, num_rows, take_rows


@dataclass(frozen=True)
class Step:
    """The batches of all ranks in one step; `tail` is None where every row is real."""

    parts: Sequence[Any]
    tail: Tail | None = None
    rows: int = -1


class Parts:
    """Deals batches out to ranks.

    Args:
        ranks: how many ranks share the data.
        batch_size: the rows of a full batch as it is read; None: any.
        split: cut each batch into slices, instead of dealing batches in turn.
        drop_last: leave out an incomplete last round.
        slice_fn: `slice_fn(data, slice, process_index=, num_processes=)` cuts a rank's part out of a whole round.
        read_first: reads the first round of the epoch for a pass that begins later; None: where nobody can.
    """

    def __init__(
        self,
        ranks: int,
        batch_size: int | None,
        split: bool = False,
        drop_last: bool = False,
        slice_fn: Callable[..., Any] | None = None,
        read_first: Callable[[], list[Any]] | None = None,
    ) -> None:
        self.ranks = ranks
        self.batch_size = batch_size
        self.split = split
        self.drop_last = drop_last
        self.slice_fn = slice_fn
        self.read_first = read_first
        self._first: list[Any] = []

    @property
    def first(self) -> list[Any]:
        """The batches of the first round, to repeat."""
        if self.read_first is not None:
            self._first, self.read_first = self.read_first() or self._first, None
        return self._first

    def steps(self, batches: Iterable[Any]) -> Iterator[Step]:
        """Yield the steps of a pass."""
        self._first = []
        batches = iter(batches)
        per_round = 1 if self.split else self.ranks
        while one_round := list(islice(batches, per_round)):
            self._first = self._first or one_round
            step = self.deal(one_round, complete=len(one_round) == per_round)
            if step is not None:
                yield step

    def deal(self, batches: list[Any], complete: bool) -> Step | None:
        """Return the step made of the batches of one round; None when it is dropped."""
        sizes = [num_rows(batch) for batch in batches]
        rows = sum(size for size in sizes if size is not None) if None not in sizes else -1
        even = self.batch_size is None or all(size in (self.batch_size, None) for size in sizes)
        if complete and even and not self.split and self.slice_fn is None:
            ragged = len(set(sizes)) > 1
            return Step(batches, Tail((None,) * self.ranks, rows) if ragged else None, rows)
        if self.drop_last and not (complete and even):
            return None
        whole = join_rows(batches) if self.batch_size is not None or self.split or self.slice_fn is not None else None
        if whole is not None:
            return self.spread(whole, rows)
        if self.split or self.slice_fn is not None:
            raise ValueError(_no_rows(batches))
        real = len(batches)
        parts = [*batches, *islice(cycle(self.first), self.ranks - real)]
        counts = (None,) * real + (0,) * (self.ranks - real)
        return Step(parts, Tail(counts, rows), rows)

    def spread(self, whole: Any, rows: int) -> Step:
        """Return the step in which the rows of a round are spread evenly over the ranks."""
        share = -(-rows // self.ranks)
        size, missing = rows, share * self.ranks - rows
        if missing:
            whole, size = self.completed(whole, rows, missing), rows + missing
        cut = self.slice_fn or (lambda data, part, process_index, num_processes: take_rows(data, part, size))
        parts = [
            cut(whole, slice(rank * share, (rank + 1) * share), process_index=rank, num_processes=self.ranks)
            for rank in range(self.ranks)
        ]
        if not missing:
            return Step(parts, None, rows)
        counts = tuple(min(max(rows - rank * share, 0), share) for rank in range(self.ranks))
        return Step(parts, Tail(counts, rows, share), rows)

    def completed(self, whole: Any, rows: int, missing: int) -> Any:
        """Return a round with `missing` more rows, of the first round or, where those do not fit, of itself."""
        first = join_rows(self.first)
        for source in (whole if first is None else first, whole):
            size = num_rows(source) or rows
            pieces = [take_rows(source, slice(0, min(size, missing - done)), size) for done in range(0, missing, size)]
            joined = join_rows([whole, *pieces])
            if joined is not None:
                return joined
        raise AssertionError("rows of one batch always fit together")


def _no_rows(batches: list[Any]) -> str:
    kinds = ", ".join(sorted({type(batch).__name__ for batch in batches}))
    return message(
        given=f"batches of type {kinds} to cut into rows",
        why="they have no tensor or list with an item per sample, or their shapes do not fit together",
        allowed="nested batches whose tensors and lists have one row per sample, of the same shape in one round",
        do="leave split_batches and slice_fn_for_dispatch off, so that every process gets whole batches",
    )
