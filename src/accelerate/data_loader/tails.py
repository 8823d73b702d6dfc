"""Loaders that begin in the middle of an epoch of which another number of processes read the first samples."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

from torch.utils.data import BatchSampler, DataLoader, IterableDataset, Sampler

from accelerate.base.messages import message
from accelerate.data_loader.copies import copy_loader, copy_with
from accelerate.data_loader.iterable import IterableDatasetShard
from accelerate.data_loader.sampler_shards import BatchSamplerShard, SkipBatchSampler


class SamplerTail(Sampler[Any]):
    """Yields what a sampler yields, without its first indices.

    Args:
        sampler: yields single indices.
        skip: how many to leave out.
    """

    def __init__(self, sampler: Any, skip: int) -> None:
        self.sampler = sampler
        self.skip = skip

    def __len__(self) -> int:
        return max(len(self.sampler) - self.skip, 0)

    def __iter__(self) -> Iterator[Any]:
        return islice(self.sampler, self.skip, None)


class StreamTail(IterableDataset):
    """Yields what a stream yields, without its first samples.

    Args:
        dataset: the stream.
        skip: how many samples to read and leave out.
    """

    def __init__(self, dataset: Any, skip: int) -> None:
        self.dataset = dataset
        self.skip = skip

    def __iter__(self) -> Iterator[Any]:
        return islice(self.dataset, self.skip, None)


def beginning_at(loader: DataLoader, samples: int) -> DataLoader:
    """Return a copy of a loader that begins after the first samples of its epoch.

    Args:
        loader: the loader, whose samplers may give this process its share only.
        samples: how many samples of all processes together are left out.

    Raises:
        ValueError: batches are made by a batch sampler of the user, or by worker processes that read a stream.
    """
    if not isinstance(loader.dataset, IterableDataset):
        return copy_loader(loader, batch_sampler=tail_of_batches(loader.batch_sampler, samples))
    if loader.num_workers:
        raise ValueError(_not_divisible("a stream that is read by several workers"))
    return copy_loader(loader, dataset=tail_of_stream(loader.dataset, samples))


def tail_of_batches(batch_sampler: Any, samples: int) -> Any:
    """Return a batch sampler that makes its batches of the indices after the first ones."""
    if type(batch_sampler) is BatchSampler:
        return copy_with(batch_sampler, sampler=SamplerTail(batch_sampler.sampler, samples))
    if isinstance(batch_sampler, (BatchSamplerShard, SkipBatchSampler)):
        return copy_with(batch_sampler, batch_sampler=tail_of_batches(batch_sampler.batch_sampler, samples))
    raise ValueError(_not_divisible(f"batches made by {type(batch_sampler).__name__}"))


def tail_of_stream(dataset: Any, samples: int) -> Any:
    """Return a stream, or the share of one, that begins after the first samples."""
    if isinstance(dataset, IterableDatasetShard):
        return copy_with(dataset, dataset=StreamTail(dataset.dataset, samples))
    return StreamTail(dataset, samples)


def _not_divisible(what: str) -> str:
    return message(
        given=f"the place inside an epoch of {what}, saved with another number of samples per step",
        why="single samples can't be left out there",
        allowed="a state saved between epochs, or with as many samples per step",
        do="resume with the number of processes and the batch size of the saved run",
    )
