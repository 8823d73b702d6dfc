"""The two seeds of a loader: one decides the order of its samples, the other the randomness of its workers.

The order is the same on every rank: what it is drawn from is agreed on once an epoch, in one small broadcast. The
workers' seed differs by rank, so no two ranks draw the same augmentation. Both are drawn where a plain `DataLoader`
draws them, in the same sequence: with the same seed, one process and many see the permutation that torch gives.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain, islice
from typing import Any

import numpy as np
import torch
from torch.utils.data import (
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from accelerate.base.messages import warn_once
from accelerate.comm.collectives import Collectives
from accelerate.data_loader.copies import copy_with
from accelerate.data_loader.samplers import OwnGenerator, SeedableRandomSampler, inner_sampler, with_inner
from accelerate.data_loader.shares import DataShard


def draw_seed(generator: torch.Generator | None) -> int:
    """Draw a seed the way torch's `DataLoader` and `RandomSampler` do; None is the global generator."""
    return int(torch.empty((), dtype=torch.int64).random_(generator=generator).item())


def agree_on(collectives: Collectives, numbers: list[int]) -> list[int]:
    """Return rank 0's numbers (64 bits each, signed or not)."""
    if collectives.world_size == 1:
        return numbers
    return collectives.broadcast(torch.tensor(signed(numbers), device=collectives.device)).tolist()


def gather_numbers(collectives: Collectives, numbers: list[int]) -> list[list[int]]:
    """Return the numbers (64 bits each, signed or not) of every rank."""
    return collectives.all_gather(torch.tensor(signed(numbers), device=collectives.device)).tolist()


def signed(numbers: list[int]) -> list[int]:
    """Return numbers of 64 bits as those signed ones that have the same bits."""
    return [number - 2**64 if number >= 2**63 else number for number in numbers]


class Order:
    """An order about which there is nothing to agree: sequential, or seeded by epoch."""

    #: What the order is drawn from, or None.
    generator: torch.Generator | None = None

    def begin(self, collectives: Collectives, source: torch.Generator | None) -> int:
        """Fix the order of one pass on all ranks, and return the workers' seed, drawn from `source`."""
        return draw_seed(source)

    def state(self) -> Any:
        """Return what the order of the present pass was drawn from; plain numbers or a tensor."""
        return None

    def resume(self, state: Any) -> None:
        """Fix the order of one pass to the one that :meth:`state` describes."""

    def opened(self, batches: Iterable[Any]) -> Iterator[Any]:
        """Return the iterator of a batch sampler that is read through, having fixed what it draws by itself."""
        return iter(batches)


class UnknownOrder(Order):
    """The order of a sampler of the user that draws from places we don't know; one process reads it as it comes.

    Args:
        name: the sampler's class.
    """

    def __init__(self, name: str) -> None:
        self.name = name

    def resume(self, state: Any) -> None:
        warn_once(
            f"Resuming inside an epoch whose order is made by {self.name}, which has no `generator`: its order is the "
            "one of the interrupted run only if it does not depend on random numbers. Give it a `torch.Generator` as "
            "`generator` and draw from that, and the order is restored."
        )


class AmbientOrder(UnknownOrder):
    """The order of such a sampler on several ranks: while it draws its first index, global generators are equal.

    Almost all samplers draw their whole order then. Afterwards the generators are where they were.
    """

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.seed = 0

    def begin(self, collectives: Collectives, source: torch.Generator | None) -> int:
        workers, self.seed = agree_on(collectives, [draw_seed(source), draw_seed(None)])
        return workers

    def state(self) -> Any:
        return self.seed

    def resume(self, state: Any) -> None:
        if state is None:  # saved by one process, which fixes nothing
            super().resume(state)
        else:
            self.seed = state

    def opened(self, batches: Iterable[Any]) -> Iterator[Any]:
        with seeded(self.seed):
            iterator = iter(batches)
            first = list(islice(iterator, 1))
        return chain(first, iterator)


class DrawnOrder(Order):
    """An order whose seed is drawn from torch's global generator in every epoch.

    Args:
        generator: the generator of the sampler, which belongs to this order.
    """

    def __init__(self, generator: torch.Generator) -> None:
        self.generator: torch.Generator = generator
        self.seed = 0

    def begin(self, collectives: Collectives, source: torch.Generator | None) -> int:
        workers, self.seed = agree_on(collectives, [draw_seed(source), draw_seed(None)])
        self.generator.manual_seed(self.seed)
        return workers

    def state(self) -> Any:
        return self.seed

    def resume(self, state: Any) -> None:
        self.seed = state
        self.generator.manual_seed(state)


class SharedOrder(Order):
    """An order drawn from a generator of the user, which continues from epoch to epoch.

    Args:
        generator: the user's generator.
    """

    def __init__(self, generator: torch.Generator) -> None:
        self.generator: torch.Generator = generator
        self.before = generator.get_state()

    def begin(self, collectives: Collectives, source: torch.Generator | None) -> int:
        if collectives.world_size > 1:
            self.generator.set_state(collectives.broadcast(self.generator.get_state()))
        workers = draw_seed(source)
        self.before = self.generator.get_state()
        return workers

    def state(self) -> Any:
        return self.before

    def resume(self, state: Any) -> None:
        self.before = state
        self.generator.set_state(state)


class Seeds:
    """The seeds of one loader.

    Args:
        order: how the order is agreed on.
        source: the generator that the user gave the loader; None is torch's global one.
        shard: the share of the data that this process reads; processes with the same share get the same workers' seed.
        collectives: all ranks of the run.
    """

    def __init__(
        self, order: Order, source: torch.Generator | None, shard: DataShard, collectives: Collectives | None
    ) -> None:
        self.order = order
        self.source = source
        self.shard = shard
        self.collectives = collectives
        #: What torch draws the seeds of worker processes from.
        self.workers = torch.Generator()
        self.workers_seed = 0

    def begin(self) -> None:
        """Draw the seeds of a pass."""
        assert self.collectives is not None
        workers = self.order.begin(self.collectives, self.source)
        if self.collectives.world_size > self.shard.count:
            workers = agree_on(self.collectives, [workers])[0]
        self._use(workers)

    def resume(self, state: dict[str, Any]) -> None:
        """Take the seeds that :meth:`state` described; those of a pass that had begun are not drawn again."""
        for generator, its_state in zip(self._generators(), state["generators"], strict=False):
            generator.set_state(its_state)
        if state["workers"] is None:
            self.begin()
        else:
            self.order.resume(state["order"])
            self._use(state["workers"])

    def state(self, began: bool) -> dict[str, Any]:
        """Return where the user's generators are, and the seeds of the present pass if one has begun."""
        return {
            "order": self.order.state() if began else None,
            "workers": self.workers_seed if began else None,
            "generators": [generator.get_state() for generator in self._generators()],
        }

    @contextmanager
    def again(self) -> Iterator[None]:
        """Let the present pass be begun a second time inside, and leave everything as it was."""
        generator = self.order.generator
        before = None if generator is None else generator.get_state()
        self.order.resume(self.order.state())
        self._use(self.workers_seed)
        try:
            with seeded(self.workers_seed):
                yield
        finally:
            if generator is not None and before is not None:
                generator.set_state(before)

    def _generators(self) -> list[torch.Generator]:
        """Return the generators of the user, which continue from epoch to epoch."""
        shared = self.order.generator if isinstance(self.order, SharedOrder) else None
        found = [each for each in (shared, self.source) if each is not None]
        return found[:1] if len(found) == 2 and found[0] is found[1] else found

    def _use(self, workers_seed: int) -> None:
        self.workers_seed = workers_seed
        self.workers.manual_seed(mixed(workers_seed, self.shard.index))

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "collectives": None}


def mixed(seed: int, index: int) -> int:
    """Return a seed of 63 bits that differs for every index (the finaliser of splitmix64)."""
    if index == 0:
        return seed
    bits = (seed + index * 0x9E3779B97F4A7C15) % 2**64
    bits = (bits ^ bits >> 30) * 0xBF58476D1CE4E5B9 % 2**64
    bits = (bits ^ bits >> 27) * 0x94D049BB133111EB % 2**64
    return (bits ^ bits >> 31) % 2**63


TORCH_RANDOM = (RandomSampler, SubsetRandomSampler, WeightedRandomSampler)


def with_own_generator(sampler: Any) -> Any:
    """Return the (batch) sampler with a generator where it draws from torch's global one, so its order can be fixed.

    Torch's own classes are copied, and the user's objects stay as they are; a subclass is given a generator in place.
    """
    inner = inner_sampler(sampler)
    if not isinstance(inner, TORCH_RANDOM) or isinstance(inner, SeedableRandomSampler) or inner.generator is not None:
        return sampler
    if type(inner) in TORCH_RANDOM:
        return with_inner(sampler, copy_with(inner, generator=OwnGenerator()))
    inner.generator = OwnGenerator()
    return sampler


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Let the global generators of torch (CPU), Python and numpy begin at `seed`, and put them back afterwards."""
    before = random.getstate(), np.random.get_state()
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        random.seed(seed)
        np.random.seed(seed % 2**32)
        try:
            yield
        finally:
            random.setstate(before[0])
            np.random.set_state(before[1])


def order_of(sampler: Any, shared: bool = False) -> Order:
    """Return how the order of a (batch) sampler is agreed on.

    Args:
        sampler: any sampler, or a sequence of indices.
        shared: several processes read shares of it.
    """
    for each in (inner_sampler(sampler), sampler):
        generator = getattr(each, "generator", None)
        if isinstance(each, SeedableRandomSampler):
            return Order()
        if isinstance(generator, torch.Generator):
            return DrawnOrder(generator) if isinstance(generator, OwnGenerator) else SharedOrder(generator)
    inner = inner_sampler(sampler)
    if type(inner) is SequentialSampler or isinstance(inner, Sequence):
        return Order()
    return (AmbientOrder if shared else UnknownOrder)(type(inner).__name__)
