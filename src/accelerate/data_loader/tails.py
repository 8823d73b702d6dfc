"""Loaders that begin in the middle of an epoch of which another number of processes read the first samples."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

from torch.utils.data import BatchSampler, DataLoader, IterableDataset

from accelerate.base.messages import message, warn_once
from accelerate.data_loader.copies import copy_loader, copy_with
from accelerate.data_loader.iterable import IterableDatasetShard
from accelerate.data_loader.pace import Pace
from accelerate.data_loader.sampler_shards import BatchSamplerShard, SamplerShard, SkipBatchSampler
from accelerate.data_loader.samplers import SamplerTail


class StreamTail(IterableDataset):
    """Yields what a stream yields, without its first samples.

    Args:
        dataset: the stream.
        skip: how many samples to read and leave out.
        keep: how many of these to keep in `kept_beginning`, where they are to be repeated at the end.
    """

    def __init__(self, dataset: Any, skip: int, keep: int = 0) -> None:
        self.dataset = dataset
        self.skip = skip
        self.keep = keep
        self.kept_beginning: list[Any] = []

    @property
    def generator(self) -> Any:
        """The generator of a stream that is to be seeded with the epoch."""
        return None if hasattr(self.dataset, "set_epoch") else getattr(self.dataset, "generator", None)

    def __iter__(self) -> Iterator[Any]:
        samples = iter(self.dataset)
        self.kept_beginning = list(islice(samples, min(self.keep, self.skip)))
        return islice(samples, self.skip - len(self.kept_beginning), None)


def beginning_at(loader: DataLoader, shift: int, pace: Pace) -> tuple[DataLoader, int]:
    """Return a copy of a loader that begins later in its epoch, and how many of its batches are to be skipped besides.

    Args:
        loader: the loader, whose samplers may give this process its share only.
        shift: how many samples of all processes together are left out, or batches (see `Pace.unit`).
        pace: how the loader takes its steps.

    Raises:
        ValueError: batches are made by a batch sampler of the user, and `shift` samples are no whole number of them.
    """
    if not isinstance(loader.dataset, IterableDataset):
        if loader.batch_sampler is None:
            return copy_loader(loader, sampler=tail_of(loader.sampler, shift, pace.unit)), 0
        return copy_loader(loader, batch_sampler=tail_of(loader.batch_sampler, shift, pace.unit)), 0
    if (pace.workers or 0) > 1:  # rank 0 reads for all; each worker has its own part of the samples
        return loader, round(shift / pace.batch_size)
    return copy_loader(loader, dataset=tail_of_stream(loader.dataset, shift)), 0


def read_by(loader: DataLoader, workers: int, exactly: bool) -> DataLoader:
    """Return a copy of a loader of a stream that is read by another number of worker processes, in their order.

    Args:
        loader: the loader.
        workers: how many worker processes, 0 for none.
        exactly: one worker will not do for none, nor the other way round, although they read in the same order.
    """
    if workers == loader.num_workers or (not exactly and max(workers, loader.num_workers) <= 1):
        return loader
    warn_once(
        f"The order of a stream follows from the number of its workers, so the rest of this epoch is read with "
        f"num_workers={workers}, as it was begun; the next one is read with num_workers={loader.num_workers}."
    )
    return copy_loader(
        loader,
        num_workers=workers,
        prefetch_factor=(loader.prefetch_factor or 2) if workers else None,
        persistent_workers=False,
        timeout=loader.timeout if workers else 0,
    )


def tail_of(sampler: Any, shift: int, unit: str) -> Any:
    """Return a batch sampler, or a sampler of single items, that begins after the first samples or batches."""
    if isinstance(sampler, (BatchSamplerShard, SkipBatchSampler)):
        return copy_with(sampler, batch_sampler=tail_of(sampler.batch_sampler, shift, unit))
    if isinstance(sampler, SamplerShard):
        return sampler.over(SamplerTail(sampler.sampler, shift))
    if type(sampler) is BatchSampler and unit == "samples":
        return copy_with(sampler, sampler=SamplerTail(sampler.sampler, shift))
    size = sampler.batch_size if unit == "samples" else 1
    if shift % size:
        raise ValueError(_not_divisible(type(sampler).__name__, shift, size))
    return SkipBatchSampler(sampler, shift // size)


def tail_of_stream(dataset: Any, samples: int) -> Any:
    """Return a stream, or the share of one, that begins after the first samples."""
    if isinstance(dataset, IterableDatasetShard):
        return copy_with(dataset, dataset=StreamTail(dataset.dataset, samples, dataset.deal.round_size))
    return StreamTail(dataset, samples)


def _not_divisible(name: str, shift: int, size: int) -> str:
    return message(
        given=f"a place after {shift} samples of an epoch whose batches of {size} are made by {name}",
        why=f"{shift} is not a multiple of {size}, and the samples inside a batch can't be told apart here",
        allowed="a state saved between epochs, or batches of the size they had",
        do="resume with the batch size of the run that saved the state, on any number of processes",
    )
