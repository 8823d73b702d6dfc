"""How the samples of one epoch are dealt out to ranks, in rounds.

In a round every rank gets `share` samples: the samples of rank 0 first, then those of rank 1, and so on. Dealing whole
batches in turn and cutting each batch into slices are the same thing with another share. Where the order of an epoch
is known as a whole, :func:`deal_out` computes a rank's batches directly, at a cost that depends neither on the number
of ranks nor on how many batches are skipped; other people's batch samplers are read through (:func:`deal_batches`,
:func:`deal_slices`). The generators return how many samples of the last round are real, per rank.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, cycle, islice
from typing import Any, TypeAlias

import torch

from accelerate.base.messages import message

INDICES_AT_ONCE = 1024

Batch: TypeAlias = list[Any]
#: Real samples of each rank in the last round; None: all of them.
Counts: TypeAlias = tuple[int, ...] | None
Dealt: TypeAlias = Generator[Batch, None, Counts]


@dataclass(frozen=True)
class Tail:
    """What is real in the last step of a pass.

    Args:
        counts: real samples of each rank; None in the place of a rank whose batch is real as a whole.
        remainder: real samples of all ranks together; -1 when nobody counted them.
        share: the size of every rank's batch, repeated samples included; None when sizes differ.
        absent: ranks that have no batch in that step.
    """

    counts: tuple[int | None, ...]
    remainder: int
    share: int | None = None
    absent: tuple[int, ...] = ()

    @property
    def is_ragged(self) -> bool:
        """Whether the ranks' batches differ in size."""
        return self.share is None and bool(self.counts)

    @classmethod
    def of_whole_batches(cls, counts: tuple[int, ...], remainder: int, even: bool) -> Tail:
        """Return the tail where a rank's batch is real as a whole or not at all; without `even` it is absent then."""
        absent = () if even else tuple(rank for rank, count in enumerate(counts) if not count)
        return cls(tuple(None if count else 0 for count in counts), remainder, None, absent)


@dataclass(frozen=True)
class Deal:
    """The rule of a round, and whose part is wanted.

    Args:
        share: samples per rank.
        ranks: how many ranks share the data.
        rank: whose batches to deal.
        drop_last: leave out an incomplete round.
        even: complete an incomplete round with the first samples of the epoch, so that all ranks get as many.
    """

    share: int
    ranks: int = 1
    rank: int = 0
    drop_last: bool = False
    even: bool = True

    @property
    def round_size(self) -> int:
        """Samples per round, of all ranks together."""
        return self.share * self.ranks

    def num_batches(self, size: int) -> int:
        """Return how many batches this rank gets of `size` samples."""
        rounds, left = divmod(size, self.round_size)
        if not left or self.drop_last:
            return rounds
        return rounds + bool(self.even or self.counts(left)[self.rank])

    def counts(self, left: int) -> tuple[int, ...]:
        """Return how many of the `left` samples of an incomplete round go to each rank."""
        return tuple(min(max(left - rank * self.share, 0), self.share) for rank in range(self.ranks))

    def seen(self, left: int) -> Counts:
        """Return the real samples per rank in the last round this rank takes part in, when `left` samples are over."""
        if not left or self.drop_last:
            return None
        counts = self.counts(left)
        return counts if self.even or counts[self.rank] else None

    def last_batch(self, left: Batch, first: Batch) -> Batch:
        """Return this rank's part of an incomplete round, which may be empty.

        Args:
            left: the samples of that round.
            first: the first samples of the epoch, at most one round, to repeat cyclically where `even` asks for it.
        """
        if self.even:
            left = [*left, *islice(cycle(first), self.round_size - len(left))]
        return left[self.rank * self.share : (self.rank + 1) * self.share]


class Indices(ABC):
    """The order of one epoch, known as a whole."""

    def __init__(self, size: int) -> None:
        self.size = size

    def draw(self) -> None:  # noqa: B027  # a fixed order has nothing to draw
        """Fix the order; called once, when the first index is wanted."""

    @abstractmethod
    def take(self, start: int, stop: int) -> torch.Tensor:
        """Return the indices at the places from `start` to `stop` (int64)."""

    def batches(self, begin: int, stop: int, deal: Deal) -> list[Batch]:
        """Return the batches that a rank gets in the complete rounds from number `begin` to `stop`."""
        rounds = self.take(begin * deal.round_size, stop * deal.round_size).view(-1, deal.ranks, deal.share)
        return rounds[:, deal.rank].tolist()

    def first(self, count: int) -> list[Any]:
        """Return the first `count` indices of the epoch, or all of them if there are fewer."""
        return self.take(0, min(count, self.size)).tolist()

    def finish(self) -> None:  # noqa: B027  # and nothing to end
        """Do what the sampler does when it is exhausted."""


class InSequence(Indices):
    """0, 1, 2, ..."""

    def take(self, start: int, stop: int) -> torch.Tensor:
        return torch.arange(start, stop)

    def batches(self, begin: int, stop: int, deal: Deal) -> list[Batch]:
        size, share, first = deal.round_size, deal.share, deal.rank * deal.share
        return [list(range(each * size + first, each * size + first + share)) for each in range(begin, stop)]


class Later(Indices):
    """An order without its first indices.

    Args:
        whole: the order of the epoch.
        skip: how many indices to leave out.
    """

    def __init__(self, whole: Indices, skip: int) -> None:
        super().__init__(max(whole.size - skip, 0))
        self.whole = whole
        self.skip = skip

    def draw(self) -> None:
        self.whole.draw()

    def take(self, start: int, stop: int) -> torch.Tensor:
        return self.whole.take(self.skip + start, self.skip + stop)

    def first(self, count: int) -> list[Any]:
        return self.whole.first(count)

    def finish(self) -> None:
        self.whole.finish()


class Permuted(Indices):
    """A permutation, drawn exactly as `torch.utils.data.RandomSampler` draws it.

    Args:
        size: how many indices.
        generator: where the permutation is drawn from; None: one that is seeded from torch's global generator.
        lives_on: whether later epochs are drawn from where this one leaves the generator.
    """

    def __init__(self, size: int, generator: torch.Generator | None, lives_on: bool = False) -> None:
        super().__init__(size)
        self.generator = generator
        self.lives_on = lives_on
        self.order = torch.empty(0, dtype=torch.int64)

    def draw(self) -> None:
        if self.generator is None:
            seed = int(torch.empty((), dtype=torch.int64).random_().item())
            self.generator = torch.Generator().manual_seed(seed)
        self.order = torch.randperm(self.size, generator=self.generator)

    def take(self, start: int, stop: int) -> torch.Tensor:
        return self.order[start:stop]

    def finish(self) -> None:
        if self.lives_on:
            # RandomSampler draws once more before it ends; without that, the permutations of later epochs would not be
            # those of a plain DataLoader.
            torch.randperm(self.size, generator=self.generator)


def deal_out(indices: Indices, deal: Deal, start: int = 0) -> Dealt:
    """Yield the batches of one rank, from the one at place `start` on."""
    indices.draw()
    rounds, left = divmod(indices.size, deal.round_size)
    at_once = max(INDICES_AT_ONCE // deal.share, 1)
    for begin in range(start, rounds, at_once):
        yield from indices.batches(begin, min(begin + at_once, rounds), deal)
    if left and start <= rounds and not deal.drop_last:
        over = indices.take(rounds * deal.round_size, indices.size).tolist()
        batch = deal.last_batch(over, indices.first(deal.round_size))
        if batch:
            yield batch
    indices.finish()
    return deal.seen(left)


def deal_slices(batches: Iterable[Sequence[Any]], deal: Deal) -> Dealt:
    """Yield the slice of one rank of each batch; short batches are completed from the first one where `even` says so.

    Raises:
        ValueError: a batch is larger than `deal.round_size`.
    """
    first: Batch = []
    left = 0
    for batch in map(list, batches):
        first = first or batch
        left = len(batch) % deal.round_size
        if len(batch) > deal.round_size:
            raise ValueError(_too_large(len(batch), deal.round_size))
        part = deal.last_batch(batch, first)
        if part and not (left and deal.drop_last):
            yield part
    return deal.seen(left)


def _too_large(found: int, size: int) -> str:
    return message(
        given=f"a batch sampler that says `batch_size={size}` and yields a batch of {found}",
        why="split_batches cuts each batch into slices of batch_size / num_processes, and the rest would be lost",
        allowed=f"batches of at most {size} samples",
        do="let the batch sampler's `batch_size` be the size of its largest batch, or leave split_batches off",
    )


def deal_batches(batches: Iterable[Sequence[Any]], deal: Deal, batch_size: int | None) -> Dealt:
    """Yield the batches of one rank when whole batches are dealt in turn.

    Args:
        batches: the batches of all ranks; a short one is taken as it is, unless it is the very last.
        deal: who deals; `deal.share` is not used.
        batch_size: the full size of a batch. None: batches have any size, and an incomplete round is completed with
            whole batches instead of single samples.
    """
    first: list[Batch] = []
    batches_of_round: list[Batch] = []
    for batch in map(list, batches):
        if len(batches_of_round) == deal.ranks:
            yield batches_of_round[deal.rank]
            batches_of_round = []
        batches_of_round.append(batch)
        if len(first) < deal.ranks:
            first.append(batch)
        if len(batches_of_round) == deal.ranks and batch_size in (None, len(batch)):
            yield batches_of_round[deal.rank]
            batches_of_round = []
    if not batches_of_round or deal.drop_last:
        return None
    counts = tuple(map(len, batches_of_round)) + (0,) * (deal.ranks - len(batches_of_round))
    if deal.even:
        complete(batches_of_round, first, deal.ranks, batch_size)
    if deal.rank >= len(batches_of_round):
        return None
    yield batches_of_round[deal.rank]
    return counts


def complete(batches: list[Batch], first: list[Batch], ranks: int, batch_size: int | None) -> None:
    """Fill an incomplete round in place from the first one, up to `ranks` batches of `batch_size` samples."""
    if batch_size is None:
        batches.extend(islice(cycle(first), ranks - len(batches)))
        return
    filler: Iterator[Any] = cycle(chain.from_iterable([*batch] for batch in first))
    batches[-1] = [*batches[-1], *islice(filler, max(batch_size - len(batches[-1]), 0))]
    batches.extend(list(islice(filler, batch_size)) for _ in range(ranks - len(batches)))
