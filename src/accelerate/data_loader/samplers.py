"""Samplers of single indices: one that shuffles by seed and epoch, and what can be known about any."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

import torch
from torch.utils.data import BatchSampler, RandomSampler, Sampler, SequentialSampler

from accelerate.data_loader.copies import copy_with
from accelerate.data_loader.dealing import Indices, InSequence, Later, Permuted


class OwnGenerator(torch.Generator):
    """A generator that a loader made for its sampler, and seeds anew in every epoch."""


class SeedableRandomSampler(RandomSampler):
    """A random sampler whose permutation follows from a seed and the epoch alone.

    Takes the arguments of `torch.utils.data.RandomSampler`, and `data_seed` (default: torch's initial seed). Epoch `e`
    is drawn from a generator seeded with `initial_seed + e`; a full pass moves on to the next epoch.
    """

    def __init__(self, *args: Any, data_seed: int | None = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.initial_seed = torch.random.initial_seed() if data_seed is None else data_seed
        self.epoch = 0

    def seeded_generator(self) -> torch.Generator:
        """Return this sampler's generator, seeded for the current epoch."""
        if self.generator is None:
            self.generator = torch.Generator()
        seed = self.initial_seed + self.epoch
        return self.generator.manual_seed(seed if seed < 2**64 else seed - 2**64)

    def __iter__(self) -> Iterator[int]:
        self.seeded_generator()
        yield from super().__iter__()
        self.set_epoch(self.epoch + 1)

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch whose permutation the next pass gives."""
        self.epoch = epoch


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


class SeededIndices(Permuted):
    """The permutation of the current epoch of a :class:`SeedableRandomSampler`."""

    def __init__(self, sampler: SeedableRandomSampler) -> None:
        super().__init__(sampler.num_samples, None)
        self.sampler = sampler

    def draw(self) -> None:
        self.generator = self.sampler.seeded_generator()
        super().draw()

    def finish(self) -> None:
        self.sampler.set_epoch(self.sampler.epoch + 1)


#: Samplers that yield as many indices as they say.
OF_KNOWN_LENGTH = frozenset({SequentialSampler, RandomSampler, SeedableRandomSampler})


def indices_of(sampler: Any) -> Indices | None:
    """Return the order that a sampler is about to give, or None when only the sampler itself can tell.

    Exactly torch's own classes and ours are known; a subclass may do anything.
    """
    if type(sampler) is SequentialSampler:
        return InSequence(len(sampler))
    if type(sampler) is SamplerTail:
        whole = indices_of(sampler.sampler)
        return None if whole is None else Later(whole, sampler.skip)
    if type(sampler) not in (RandomSampler, SeedableRandomSampler):
        return None
    if sampler.replacement or sampler.num_samples != len(sampler.data_source):
        return None
    if isinstance(sampler, SeedableRandomSampler):
        return SeededIndices(sampler)
    generator = sampler.generator
    return Permuted(
        sampler.num_samples, generator, lives_on=not (generator is None or isinstance(generator, OwnGenerator))
    )


def get_sampler(dataloader: Any) -> Any:
    """Return the sampler that decides the order of a loader's samples, or None when there is none.

    Args:
        dataloader: a `DataLoader`, prepared or not; where its `sampler` is itself a batch sampler, the sampler inside.
    """
    outer = dataloader.sampler if isinstance(dataloader.sampler, BatchSampler) else dataloader.batch_sampler
    return getattr(unwrapped(outer), "sampler", None)


def inner_sampler(sampler: Any) -> Any:
    """Return the sampler that a batch sampler reads; any other sampler, or one that reads none, as it is."""
    inner = getattr(sampler, "sampler", None)
    return sampler if inner is None else inner


def with_inner(sampler: Any, inner: Any) -> Any:
    """Return a batch sampler that reads `inner`; one of torch's own class is copied, another is changed in place."""
    if inner_sampler(sampler) is sampler:
        return inner
    if type(sampler) is BatchSampler:
        return copy_with(sampler, sampler=inner)
    sampler.sampler = inner
    return sampler


def sampler_chain(dataloader: Any) -> Iterator[Any]:
    """Yield the samplers of a loader from the outside in, each once."""
    seen: dict[int, Any] = {}
    waiting = [dataloader.sampler, dataloader.batch_sampler]
    while waiting:
        sampler = waiting.pop()
        if sampler is not None and id(sampler) not in seen:
            seen[id(sampler)] = sampler
            waiting += getattr(sampler, "sampler", None), getattr(sampler, "batch_sampler", None)
    return iter(seen.values())


def unwrapped(batch_sampler: Any) -> Any:
    """Return the user's batch sampler inside of shares and skips."""
    while isinstance(batch_sampler, BatchSampler) and hasattr(batch_sampler, "batch_sampler"):
        batch_sampler = batch_sampler.batch_sampler
    return batch_sampler
