"""A share of a stream that every process reads as a whole.

The samples come in rounds, as in `dealing`; the last, incomplete round is completed with the first samples.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

import torch
from torch.utils.data import IterableDataset

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
        return None if self.whole_items else self.deal.round_size

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch of the next pass, here and in the stream."""
        self.epoch = epoch
        if hasattr(self.dataset, "set_epoch"):
            self.dataset.set_epoch(epoch)

    def __len__(self) -> int:
        deal = self.deal
        return deal.num_batches(len(self.dataset)) * deal.share

    def __iter__(self) -> Iterator[Any]:
        generator = getattr(self.dataset, "generator", None)
        if isinstance(generator, torch.Generator) and not hasattr(self.dataset, "set_epoch"):
            generator.manual_seed(self.epoch)
        deal, samples = self.deal, iter(self.dataset)
        first = one_round = list(islice(samples, deal.round_size))
        start = deal.rank * deal.share
        while len(one_round) == deal.round_size:
            yield from one_round[start : start + deal.share]
            one_round = list(islice(samples, deal.round_size))
        if one_round and not deal.drop_last:
            yield from self._completed(one_round, first)

    def _completed(self, left: list[Any], first: list[Any]) -> Iterator[Any]:
        """Yield this process's samples of an incomplete round."""
        deal, part = self.deal, self.deal.last_batch(left, first)
        if not self.marks:
            return iter(part)
        counts = deal.counts(len(left))
        tail = Tail.of_whole_batches(counts, -1, even=True) if self.whole_items else Tail(counts, len(left), deal.share)
        return iter([Marked(sample, tail) for sample in part])
