"""Batch samplers that give a rank its share, or begin later.

They wrap the batch sampler of the user, which stays reachable and is read at iteration time only: changing
`num_processes`, `process_index` or `even_batches` on a prepared loader's batch sampler takes effect in the next epoch.
Only indices are skipped, at a cost that does not depend on how many.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any

from torch.utils.data import BatchSampler, DataLoader, Sampler

from accelerate.base.messages import message
from accelerate.data_loader.copies import copy_loader, copy_with
from accelerate.data_loader.dealing import Batch, Counts, Deal, Dealt, Tail, deal_batches, deal_out, deal_slices
from accelerate.data_loader.samplers import OF_KNOWN_LENGTH, indices_of, with_inner


def iterate_from(batch_sampler: Any, start: int) -> Iterator[Any]:
    """Yield the batches (or indices) of a sampler from the one at place `start` on, without making those before."""
    if isinstance(batch_sampler, (BatchSamplerShard, SamplerShard)):
        return batch_sampler.iterate_from(start)
    if type(batch_sampler) is BatchSampler and start:
        indices = indices_of(batch_sampler.sampler)
        if indices is not None:
            deal = Deal(batch_sampler.batch_size, drop_last=batch_sampler.drop_last, even=False)
            return deal_out(indices, deal, start)
    return islice(iter(batch_sampler), start, None) if start else iter(batch_sampler)


class BatchSamplerShard(BatchSampler):
    """Gives one process its share of the batches of a batch sampler.

    Args:
        batch_sampler: the batch sampler to share out. One without `batch_size` may yield batches of any size; they are
            then repeated as a whole where padding is needed.
        num_processes: among how many processes.
        process_index: whose share this is.
        split_batches: cut each batch into `num_processes` slices instead of dealing whole batches in turn;
            `batch_size` is then that of all processes together.
        even_batches: give every process as many batches of the same size, by repeating the first samples of the epoch
            at its end; otherwise some processes may end with fewer or smaller batches.
        opened: begins the iteration of a batch sampler that has to be read through.

    Raises:
        ValueError: `split_batches` with a batch size that `num_processes` does not divide.

    `len()` is exactly what this process yields, wherever the number of samples is known beforehand.
    """

    def __init__(
        self,
        batch_sampler: BatchSampler,
        num_processes: int = 1,
        process_index: int = 0,
        split_batches: bool = False,
        even_batches: bool = True,
        *,
        opened: Callable[[Iterable[Any]], Iterator[Any]] = iter,
    ) -> None:
        self.batch_sampler: Any = batch_sampler
        self.opened = opened
        self.num_processes = num_processes
        self.process_index = process_index
        self.split_batches = split_batches
        self.even_batches = even_batches
        self.batch_size = getattr(batch_sampler, "batch_size", None)  # type: ignore[assignment]
        self.drop_last = getattr(batch_sampler, "drop_last", False)
        #: Real samples per rank in the last round of the latest full pass; None: all of them, or no pass yet.
        self.last_round: Counts = None
        if split_batches:
            check_divisible(self.batch_size, num_processes)

    @property
    def sampler(self) -> Any:
        """The sampler that the inner batch sampler reads, or None when it has none."""
        return getattr(self.batch_sampler, "sampler", None)

    @sampler.setter
    def sampler(self, sampler: Sampler[int] | Iterable[int]) -> None:
        self.batch_sampler.sampler = sampler

    @property
    def total_length(self) -> int:
        """The number of batches of the inner batch sampler."""
        return len(self.batch_sampler)

    @property
    def deal(self) -> Deal:
        """The rule by which this share is dealt, from the present values of the attributes."""
        size = self.batch_size or 1
        share = size // self.num_processes if self.split_batches else size
        return Deal(share, self.num_processes, self.process_index, self.drop_last, self.even_batches)

    def __len__(self) -> int:
        batches, ranks = len(self.batch_sampler), self.num_processes
        if ranks == 1:
            return batches
        if type(self.batch_sampler) is BatchSampler:
            return self.deal.num_batches(len(self.batch_sampler.sampler))  # type: ignore[arg-type]
        if self.split_batches:
            return batches
        rounds, left = divmod(batches, ranks)
        extra = left and not self.drop_last and (self.even_batches or self.process_index < left)
        return rounds + bool(extra)

    def __iter__(self) -> Iterator[Batch]:
        return self.iterate_from(0)

    def iterate_from(self, start: int) -> Iterator[Batch]:
        """Yield the batches of this process from the one at place `start` on."""
        if self.num_processes == 1:
            yield from iterate_from(self.batch_sampler, start)
            return
        indices = indices_of(self.batch_sampler.sampler) if type(self.batch_sampler) is BatchSampler else None
        if indices is not None:
            self.last_round = yield from deal_out(indices, self.deal, start)
        else:
            yield from islice(self._read_through(), start, None)

    @property
    def ragged(self) -> bool:
        """Whether batches may be of any size."""
        return self.batch_size is None

    def tail(self) -> Tail | None:
        """Return what was real in the last step of the latest pass; None where everything was."""
        counts = self.last_round
        if counts is None:
            return None
        if self.ragged or not self.even_batches:
            return Tail.of_whole_batches(counts, sum(counts), self.even_batches)
        return Tail(counts, sum(counts), self.deal.share)

    def _read_through(self) -> Dealt:
        """Yield this process's batches while reading those of all."""
        batches = self.opened(self.batch_sampler)
        if self.split_batches:
            self.last_round = yield from deal_slices(batches, self.deal)
        else:
            self.last_round = yield from deal_batches(batches, self.deal, self.batch_size)
        return self.last_round


class SamplerShard(Sampler[Any]):
    """Gives one process its share of single items, for loaders with `batch_size=None` whose items are whole batches.

    Args:
        sampler: yields the index of one item at a time.
        num_processes, process_index, even_batches, opened: see :class:`BatchSamplerShard`.
    """

    def __init__(
        self,
        sampler: Iterable[Any],
        num_processes: int = 1,
        process_index: int = 0,
        even_batches: bool = True,
        *,
        opened: Callable[[Iterable[Any]], Iterator[Any]] = iter,
    ) -> None:
        self.singles = BatchSamplerShard(
            BatchSampler(sampler, 1, False), num_processes, process_index, even_batches=even_batches, opened=opened
        )

    @property
    def sampler(self) -> Any:
        """The sampler of single items."""
        return self.singles.sampler

    #: Each item is a batch of any size.
    ragged = True

    @property
    def num_processes(self) -> int:
        """Among how many processes the items are shared out."""
        return self.singles.num_processes

    @property
    def even_batches(self) -> bool:
        """Whether every process gets as many items; assignable."""
        return self.singles.even_batches

    @even_batches.setter
    def even_batches(self, even_batches: bool) -> None:
        self.singles.even_batches = even_batches

    def over(
        self, sampler: Iterable[Any], opened: Callable[[Iterable[Any]], Iterator[Any]] | None = None
    ) -> SamplerShard:
        """Return the same share of the items of another sampler."""
        mine = self.singles
        opened = opened or mine.opened
        return SamplerShard(sampler, mine.num_processes, mine.process_index, mine.even_batches, opened=opened)

    def __len__(self) -> int:
        return len(self.singles)

    def __iter__(self) -> Iterator[Any]:
        return self.iterate_from(0)

    def tail(self) -> Tail | None:
        """Return whose item was real in the last step of the latest pass; None where all were."""
        counts = self.singles.last_round
        return None if counts is None else Tail.of_whole_batches(counts, -1, self.even_batches)

    def iterate_from(self, start: int) -> Iterator[Any]:
        """Yield the indices of this process from the one at place `start` on."""
        for (index,) in self.singles.iterate_from(start):
            yield index


def check_divisible(batch_size: int | None, num_processes: int) -> None:
    """Raise unless a batch of `batch_size` can be cut into `num_processes` equal slices.

    Raises:
        ValueError: it can't, or the batch size is not known.
    """
    if isinstance(batch_size, int) and batch_size > 0 and batch_size % num_processes == 0:
        return
    if not isinstance(batch_size, int):
        why = "split_batches cuts each batch into equal slices, so the size of a batch must be known"
        do = "pass `batch_size` to the DataLoader, let the batch sampler have one, or leave split_batches off"
    else:
        below = batch_size // num_processes * num_processes
        nearest = " or ".join(str(size) for size in (below, below + num_processes) if size)
        why = f"a batch of {batch_size} can't be cut into {num_processes} equal slices"
        do = f"use batch_size={nearest}, or leave split_batches off"
    raise ValueError(
        message(
            given=f"split_batches=True with batch_size={batch_size} and num_processes={num_processes}",
            why=why,
            allowed=f"a batch_size that is a multiple of {num_processes}",
            do=do,
        )
    )


class SkipBatchSampler(BatchSampler):
    """Yields what a batch sampler yields, without its first batches.

    Args:
        batch_sampler: any batch sampler, or a sampler of single items.
        skip_batches: how many to leave out.
    """

    def __init__(self, batch_sampler: BatchSampler, skip_batches: int = 0) -> None:
        self.batch_sampler: Any = batch_sampler
        self.skip_batches = skip_batches
        self.batch_size = getattr(batch_sampler, "batch_size", None)  # type: ignore[assignment]
        self.drop_last = getattr(batch_sampler, "drop_last", False)

    @property
    def sampler(self) -> Any:  # type: ignore[override]  # read-only: it belongs to the batch sampler inside
        """The sampler that the inner batch sampler reads, or None when it has none."""
        return getattr(self.batch_sampler, "sampler", None)

    @property
    def total_length(self) -> int:
        """The number of batches of the inner batch sampler."""
        return len(self.batch_sampler)

    def __len__(self) -> int:
        return max(len(self.batch_sampler) - self.skip_batches, 0)

    def __iter__(self) -> Iterator[Any]:
        return iterate_from(self.batch_sampler, self.skip_batches)


def counts_itself(dataloader: DataLoader) -> bool:
    """Tell whether the batches of a loader are made by classes of torch and ours, which give as many as they say."""
    batches: Any = dataloader.batch_sampler
    while type(batches) in (BatchSamplerShard, SkipBatchSampler):
        batches = batches.batch_sampler
    return type(batches) is BatchSampler and type(batches.sampler) in OF_KNOWN_LENGTH


def with_sampler(outer: Any, sampler: Any, opened: Callable[[Iterable[Any]], Iterator[Any]]) -> Any:
    """Return the same shares and skips of batches made of the indices of another sampler.

    Args:
        outer: a batch sampler, or a sampler of single items, with its shares and skips around it.
        sampler: yields single indices.
        opened: begins the iteration of what has to be read through.
    """
    if isinstance(outer, SkipBatchSampler):
        return copy_with(outer, batch_sampler=with_sampler(outer.batch_sampler, sampler, opened))
    if isinstance(outer, BatchSamplerShard):
        return copy_with(outer, batch_sampler=with_inner(outer.batch_sampler, sampler), opened=opened)
    if isinstance(outer, SamplerShard):
        return outer.over(sampler, opened)
    return with_inner(outer, sampler)


def skipping(loader: DataLoader, skip: int) -> DataLoader:
    """Return a copy of a map-style loader that begins `skip` batches later, without reading them."""
    if loader.batch_sampler is None:
        return copy_loader(loader, sampler=SkipBatchSampler(loader.sampler, skip))  # type: ignore[arg-type]
    return copy_loader(loader, batch_sampler=SkipBatchSampler(loader.batch_sampler, skip))  # type: ignore[arg-type]
