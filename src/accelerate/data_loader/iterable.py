"""A share of a stream: every process reads all of it and keeps its part, or reads its own sources of it only.

The samples come in rounds, as in `dealing`; the last, incomplete round is completed with the first samples. A share
can tell how far it has come, so that it can be resumed in workers too: from the state of the stream where that has
one, and by reading again where it has none.
"""

from __future__ import annotations

import copy
import operator
from collections.abc import Iterator
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch.utils.data import IterableDataset

from accelerate.base.messages import message
from accelerate.data_loader.dealing import Deal, Tail
from accelerate.data_loader.marked import Marked
from accelerate.data_loader.sampler_shards import check_divisible


class IterableDatasetShard(IterableDataset):
    """Yields the samples of one process among those of a stream.

    Args:
        dataset: the stream, the same on every process. One that has a `torch.Generator` as `generator` and no
            `set_epoch` has it seeded with the epoch whenever a pass begins.
        batch_size: samples of one process in a round; those of all processes with `split_batches`.
        drop_last: leave out an incomplete last round, instead of completing it with the first samples.
        num_processes: among how many processes the stream is shared out.
        process_index: whose samples to yield.
        split_batches: see `batch_size`, which `num_processes` must then divide.
        marks: yield the samples of an incomplete round as `Marked`, so that repeated ones can be told.
        whole_items: a sample is a batch of any size.

    Raises:
        ValueError: `batch_size` can't be split.
    """

    #: Among how many processes the sources of the stream are divided; None: every process reads all of it.
    sources: int | None = None

    def __init__(
        self,
        dataset: Any,
        batch_size: int = 1,
        drop_last: bool = False,
        num_processes: int = 1,
        process_index: int = 0,
        split_batches: bool = False,
        *,
        marks: bool = False,
        whole_items: bool = False,
    ) -> None:
        if split_batches:
            check_divisible(batch_size, num_processes)
        self.dataset = dataset
        self.batch_size = batch_size
        self.drop_last = drop_last
        self.num_processes = num_processes
        self.process_index = process_index
        self.split_batches = split_batches
        self.marks = marks
        self.whole_items = whole_items
        self.epoch = 0
        self._start: Any = None  # the state of the stream before its first sample
        self._rounds = 0
        self._part: Iterator[Any] = iter(())  # the samples of the latest round that are yet to be yielded
        self._resumed: dict[str, Any] | None = None

    @property
    def deal(self) -> Deal:
        """The rule by which the stream is dealt, from the present values of the attributes."""
        share = self.batch_size // self.num_processes if self.split_batches else self.batch_size
        return Deal(share, self.num_processes, self.process_index, self.drop_last)

    @property
    def ragged(self) -> bool:
        """Whether batches may be of any size."""
        return self.whole_items

    @property
    def total_batch_size(self) -> int | None:
        """The samples of all processes together in one step; None when a sample is a batch of any size."""
        return None if self.whole_items else self.deal.round_size * (self.sources or 1)

    def readers(self, workers: int) -> int | None:
        """Return the number of processes where the order of the samples depends on it; None where it does not."""
        return self.sources or (self.num_processes if workers > 1 else None)

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch of the next pass, here and in the stream."""
        self.epoch = epoch
        if hasattr(self.dataset, "set_epoch"):
            self.dataset.set_epoch(epoch)

    def __len__(self) -> int:
        deal = self.deal
        return deal.num_batches(len(self.dataset)) * deal.share

    def __iter__(self) -> Iterator[Any]:
        state, self._resumed = self._resumed, None
        if state is None or state["stream"] is None:
            return islice(self._samples(None), 0 if state is None else state["given"], None)
        return self._samples(state)

    def _samples(self, state: dict[str, Any] | None) -> Iterator[Any]:
        """Yield this process's samples, from where a state says or from the first one on."""
        deal = self.deal
        self._begin(state, deal)
        samples = iter(self.dataset)
        one_round = list(islice(samples, deal.round_size))
        first = [*getattr(self.dataset, "kept_beginning", ()), *one_round] if state is None else []
        start = deal.rank * deal.share
        while len(one_round) == deal.round_size:
            yield from self._given_out(one_round[start : start + deal.share])
            one_round = list(islice(samples, deal.round_size))
        if one_round and not deal.drop_last:
            yield from self._given_out(self._completed(one_round, first or self._first_round()))

    def _begin(self, state: dict[str, Any] | None, deal: Deal) -> None:
        """Let the stream begin, or go on where a state says."""
        generator = getattr(self.dataset, "generator", None)
        if isinstance(generator, torch.Generator) and not hasattr(self.dataset, "set_epoch"):
            generator.manual_seed(self.epoch)
        if state is None:
            self._start, self._rounds = state_of(self.dataset), 0
        else:
            self._start, self._rounds = state["start"], state["given"] // deal.share
            self.dataset.load_state_dict(copy.deepcopy(state["stream"]))

    def _given_out(self, part: list[Any]) -> Iterator[Any]:
        self._part = iter(part)
        self._rounds += 1
        return self._part

    def _first_round(self) -> list[Any]:
        """Read the first samples again; a pass that was resumed has not seen them."""
        now = state_of(self.dataset)
        self.dataset.load_state_dict(copy.deepcopy(self._start))
        first = list(islice(self.dataset, self.deal.round_size))
        self.dataset.load_state_dict(now)
        return first

    def _completed(self, left: list[Any], first: list[Any]) -> list[Any]:
        """Return this process's samples of an incomplete round."""
        deal, part = self.deal, self.deal.last_batch(left, first)
        if not self.marks:
            return part
        counts = deal.counts(len(left))
        tail = Tail.of_whole_batches(counts, -1, even=True) if self.whole_items else Tail(counts, len(left), deal.share)
        return [Marked(sample, tail) for sample in part]

    def state_dict(self) -> dict[str, Any]:
        """Return how far the present pass has come, with the state of the stream where that has one.

        The stream has been read to the end of a round, so its state tells nothing in the middle of one.
        """
        if self._resumed is not None:
            return self._resumed
        left = operator.length_hint(self._part)
        stream = None if left else state_of(self.dataset)
        return {"given": self._rounds * self.deal.share - left, "start": self._start, "stream": stream}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Let the next pass go on where :meth:`state_dict` was called."""
        self._resumed = state_dict


class SourceShard(IterableDatasetShard):
    """Yields the samples of one process that reads its own sources (files, shards) of a stream and no others.

    What it doesn't know itself is looked up in the stream of its sources.

    Args:
        dataset: a stream that has `shard(num_shards=, index=)`, as those of the `datasets` library.
        batch_size, drop_last, num_processes, process_index, whole_items: see :class:`IterableDatasetShard`.
    """

    def __init__(
        self,
        dataset: Any,
        batch_size: int,
        drop_last: bool,
        num_processes: int,
        process_index: int,
        whole_items: bool = False,
    ) -> None:
        own = dataset.shard(num_shards=num_processes, index=process_index)
        super().__init__(own, batch_size, drop_last, marks=True, whole_items=whole_items)
        self.sources = num_processes

    def __getattr__(self, name: str) -> Any:
        if name == "dataset":  # not there yet: this object is being unpickled
            raise AttributeError(name)
        return getattr(self.dataset, name)

    def __len__(self) -> int:
        raise TypeError(
            message(
                given="len() of a stream of which every process reads its own shards",
                why="shards may differ in size, and all processes end when the last one does",
                allowed="len() of datasets with indices",
                do="count steps, or end the loop at a number of steps",
            )
        )


def num_sources(dataset: Any) -> int:
    """Return into how many sources a stream can be divided; 0 when it can't be."""
    number = getattr(dataset, "num_shards", None) or getattr(dataset, "n_shards", None)
    return number if isinstance(number, int) and callable(getattr(dataset, "shard", None)) else 0


def has_state(dataset: Any) -> bool:
    """Tell whether a dataset can be resumed exactly from a state."""
    return hasattr(dataset, "state_dict") and hasattr(dataset, "load_state_dict") and is_complete(dataset)


def is_complete(dataset: Any) -> bool:
    """Tell whether the state of a dataset, where it has one, holds all that is needed to go on.

    The state of a stream of the `datasets` library leaves out what is in its shuffle buffer, so these samples would be
    lost. Found by the names of its inner iterables, as no attribute tells it.
    """
    return not any(type(inner).__name__.startswith("BufferShuffled") for inner in inner_iterables(dataset))


def shuffle_states(dataset: Any) -> list[Any]:
    """Return the states of the generators by which a stream of the `datasets` library is shuffled."""
    generators = [getattr(inner, "generator", None) for inner in inner_iterables(dataset)]
    return [each.bit_generator.state for each in generators if isinstance(each, np.random.Generator)]


def inner_iterables(dataset: Any) -> Iterator[Any]:
    """Yield what a stream of the `datasets` library is made of; nothing for other streams."""
    waiting = [getattr(dataset, "_ex_iterable", None)]
    while waiting:
        inner = waiting.pop()
        yield inner
        waiting += getattr(inner, "ex_iterables", None) or filter(None, [getattr(inner, "ex_iterable", None)])


def state_of(dataset: Any) -> Any:
    """Return a copy of the state of a dataset; None where it has none."""
    return copy.deepcopy(dataset.state_dict()) if has_state(dataset) else None
