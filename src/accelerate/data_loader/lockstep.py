"""Streams whose length nobody knows, read by every rank: all end at the same step.

A rank that went on alone would wait for the others in its next collective, for ever. So the ranks tell each other how
many batches they have: not one by one, which would cost a message per step, but for some batches read ahead, and while
those agreed on before are given out, so that nobody waits for the answer. How many are read ahead follows from the
number and the size of the batches, never from a clock, so a rerun reads in the same order.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import repeat
from typing import Any, NamedTuple

import numpy as np
import torch

from accelerate.base.messages import message, warn_once
from accelerate.comm.collectives import Collectives
from accelerate.comm.tree import leaves, with_leaves
from accelerate.data_loader.dealing import Tail
from accelerate.data_loader.marked import Marked
from accelerate.data_loader.shares import DataShard

NOTHING: Any = object()
READ_AHEAD = 128  # batches
READ_AHEAD_BYTES = 2**22
AT_FIRST = 8  # batches read before the first one is given out
AT_ONCE = 4  # and for each that is
GOES_ON, ENDED, FAILED = 0, 1, 2


class Report(NamedTuple):
    """What one rank tells the others.

    `ready` batches are read and not agreed on, of which all but perhaps the last are complete; `last` samples of that
    one are real (-1: all). `is_empty` is 1 while the rank has had no batch at all in this pass.
    """

    ready: int
    last: int
    status: int
    is_empty: int

    def real(self, step: int) -> int:
        """Return how many samples of the batch number `step` of those that are ready are real; -1: all."""
        if step >= self.ready:
            return 0
        return self.last if step == self.ready - 1 else -1


class Reader:
    """The batches of one rank, some of them read ahead.

    Args:
        batches: the batches; one that is not real as a whole is `Marked`.
        index: the share of this rank, by which its samples are counted in a mark.
    """

    def __init__(self, batches: Iterator[Any], index: int) -> None:
        self.batches = batches
        self.index = index
        self.status = GOES_ON
        self.error: Exception | None = None
        self.first = NOTHING
        self._waiting: deque[Any] = deque()
        self._agreed = 0  # so many of those that wait are agreed on
        self._last = -1
        self._limit = 1

    def fill(self, most: int) -> None:
        """Read ahead at most so many batches, while there is room and up to one that is not complete."""
        while most and self.status == GOES_ON and self._last < 0:
            if len(self._waiting) >= max(self._limit, self._agreed + 1):
                return
            most -= 1
            try:
                batch = next(self.batches, NOTHING)
            except Exception as error:
                self.status, self.error = FAILED, error
                return
            if batch is NOTHING:
                self.status = ENDED
                return
            if type(batch) is Marked:
                counts = batch.tail.counts
                count, batch = counts[self.index if len(counts) > 1 else 0], batch.data
                self._last = -1 if count is None else count
            if self.first is NOTHING:
                self.first = same_again(batch)
                self._limit = max(min(READ_AHEAD, READ_AHEAD_BYTES // max(size_of(batch), 1)), 1)
            self._waiting.append(batch)

    def report(self) -> Report:
        """Return what the others have to know, having read at least a batch more than is agreed on."""
        self.fill(AT_FIRST)
        ready = max(len(self._waiting) - self._agreed, 0)
        status = GOES_ON if self.status == FAILED and ready else self.status  # first what could be read
        return Report(ready, self._last if ready else -1, status, int(self.first is NOTHING))

    def agree_on(self, steps: int) -> None:
        """Take note that so many batches are about to be taken."""
        self._agreed = steps

    def take(self) -> Any:
        """Return the next batch, or the first one again, and read on."""
        self._agreed -= 1
        if not self._waiting:
            return same_again(self.first)
        if len(self._waiting) == 1:
            self._last = -1
        batch = self._waiting.popleft()
        self.fill(AT_ONCE)
        return batch


class Lockstep:
    """Gives every rank as many batches.

    A rank that has run out repeats its first batch, marked as not real; with `drop_last`, all end with the first.

    Args:
        shard: which share of the data this process reads.
        batch_size: the samples in a batch of one process; None: any.
        drop_last: see above.
        because: what it means that ranks have different numbers of batches.
    """

    def __init__(self, shard: DataShard, batch_size: int | None, drop_last: bool, because: str) -> None:
        self.shard = shard
        self.batch_size = batch_size
        self.drop_last = drop_last
        self.because = because
        self._said = False

    def run(
        self, collectives: Collectives, batches: Iterator[Any], meet: Callable[[int], None] | None = None
    ) -> Iterator[Any]:
        """Yield batches as long as any rank has some, `Marked` in steps in which not everything is real.

        Args:
            collectives: all ranks.
            batches: those of this rank.
            meet: called by all ranks together, now and then, with the number of steps until there.

        Raises:
            RuntimeError: another rank failed to read.
        """
        own, done, ended = Reader(batches, self.shard.index), 0, False
        if meet is not None:
            meet(done)
        answers = ask(collectives, own.report())
        while not ended:
            reports = [Report(*row) for row in answers().tolist()]
            if own.error is not None and reports[collectives.rank].status == FAILED:
                raise own.error
            steps, ended = agree(reports, self.drop_last)
            self._mention_uneven(collectives, reports, done, steps, ended)
            if steps and any(each.is_empty for each in reports):
                lend_first(collectives, reports, own)
            own.agree_on(steps)
            if not ended:
                answers = ask(collectives, own.report())
            for tail in self._tails(reports, steps):
                batch = own.take()
                yield batch if tail is None else Marked(batch, tail)
            done += steps
            if meet is not None and not ended:
                meet(done)

    def _tails(self, reports: Sequence[Report], steps: int) -> Iterable[Tail | None]:
        """Return what is real in each of the next steps."""
        if all(each.ready >= steps and each.last < 0 for each in reports):
            return repeat(None, steps)
        return (self._tail(reports, step) for step in range(steps))

    def _tail(self, reports: Sequence[Report], step: int) -> Tail | None:
        """Return what is real in a step, share by share; None where everything is."""
        count = self.shard.count
        real = [reports[index * len(reports) // count].real(step) for index in range(count)]
        if all(each < 0 for each in real):
            return None
        if self.batch_size is None:
            return Tail.of_whole_batches(tuple(real), -1, even=True)
        counts = tuple(self.batch_size if each < 0 else each for each in real)
        return Tail(counts, sum(counts), self.batch_size)

    def _mention_uneven(
        self, collectives: Collectives, reports: Sequence[Report], done: int, steps: int, ended: bool
    ) -> None:
        """Say once that ranks have different numbers of batches."""
        out = [rank for rank, each in enumerate(reports) if each.status == ENDED and each.ready < steps]
        if self.drop_last and ended and any(each.ready > steps or each.status == GOES_ON for each in reports):
            out = [rank for rank, each in enumerate(reports) if each.status == ENDED and each.ready == steps]
        if not out or self._said:
            return
        self._said = True
        if collectives.rank == 0:
            last = done + min(reports[rank].ready for rank in out)
            what = (
                "all ranks end there, and what the others have left is left out (drop_last=True)"
                if self.drop_last
                else "until all have ended, they repeat their first batch, which gather_for_metrics leaves out"
            )
            warn_once(f"Ranks {out} ran out of data after {last} steps, before the others: {what}. {self.because}")


def agree(reports: Sequence[Report], drop_last: bool) -> tuple[int, bool]:
    """Return how many steps all ranks take now, and whether these are the last ones.

    Raises:
        RuntimeError: a rank failed to read.
    """
    failed = [rank for rank, each in enumerate(reports) if each.status == FAILED]
    if failed:
        raise RuntimeError(
            message(
                given="the next batch of a stream that every rank reads",
                why=f"ranks {failed} failed to read it",
                allowed="streams that all ranks can read",
                do=f"see the traceback of rank {failed[0]}",
            )
        )
    if drop_last:
        steps = min(each.ready for each in reports)
        return steps, any(each.status == ENDED and each.ready == steps for each in reports)
    going_on = [each.ready for each in reports if each.status == GOES_ON]
    return (min(going_on), False) if going_on else (max(each.ready for each in reports), True)


def ask(collectives: Collectives, report: Report) -> Callable[[], torch.Tensor]:
    """Send a report, and return the function that waits for those of all ranks."""
    return collectives.all_gather_later(torch.tensor(report, device=collectives.device))


def lend_first(collectives: Collectives, reports: Sequence[Report], own: Reader) -> None:
    """Give a batch to ranks that have had none, so that they have something to repeat."""
    donor = next(rank for rank, each in enumerate(reports) if each.ready)
    batch = collectives.broadcast_object(own.first if collectives.rank == donor else None, donor)
    if own.first is NOTHING:
        own.first = batch


def same_again(batch: Any) -> Any:
    """Return a batch with the same leaves in containers of its own, as scripts take things out of those."""
    return with_leaves(batch, leaves(batch))


def size_of(batch: Any) -> int:
    """Return the bytes of a batch, more than any limit where they are not known."""
    total = 0
    for leaf in leaves(batch):
        if isinstance(leaf, (torch.Tensor, np.ndarray)):
            total += leaf.nbytes
        elif isinstance(leaf, (str, bytes)):
            total += len(leaf)
        elif not isinstance(leaf, (int, float, complex, type(None))):
            return READ_AHEAD_BYTES + 1
    return total
