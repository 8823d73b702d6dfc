"""Ranks that read streams of different lengths end at the same step, and know what is real in each."""

from __future__ import annotations

import warnings

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from accelerate.base.messages import forget_warnings
from accelerate.comm.fake import FakeWorld
from accelerate.data_loader.dealing import Tail
from accelerate.data_loader.lockstep import (
    ENDED,
    FAILED,
    GOES_ON,
    READ_AHEAD,
    READ_AHEAD_BYTES,
    Lockstep,
    Report,
    agree,
    size_of,
)
from accelerate.data_loader.marked import Marked
from accelerate.data_loader.shares import DataShard

SIZE = 3


def batches_of(rank, counts):
    """Yield a batch of `SIZE` samples per count, filled up by -1 and marked where it is not full."""
    for number, count in enumerate(counts):
        real = [1000 * rank + 10 * number + index for index in range(count)]
        batch = torch.tensor(real + [-1] * (SIZE - count))
        yield batch if count == SIZE else Marked(batch, Tail((count,), count, SIZE))


def together(all_counts, drop_last=False, because="Because."):
    """Return what every rank gets, as (samples, counts of the step or None)."""

    def work(collectives):
        shard = DataShard(collectives.rank, collectives.world_size)
        lockstep = Lockstep(shard, SIZE, drop_last, because)
        found = []
        for batch in lockstep.run(collectives, batches_of(collectives.rank, all_counts[collectives.rank])):
            tail = batch.tail if isinstance(batch, Marked) else None
            data = batch.data if isinstance(batch, Marked) else batch
            found.append((data.tolist(), None if tail is None else tail.counts))
        return found

    return FakeWorld(len(all_counts)).run(work)


full_batches = st.lists(st.just(SIZE), max_size=40)
any_batches = st.lists(st.sampled_from([SIZE, SIZE, SIZE, 1, 2]), max_size=40)


@settings(max_examples=60)
@given(st.lists(any_batches, min_size=2, max_size=4))
def test_every_rank_gives_as_many_batches_and_every_sample_is_real_once(all_counts):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = together(all_counts)
    steps = max(map(len, all_counts))
    assert [len(each) for each in found] == [steps] * len(all_counts)
    for rank, (counts, batches) in enumerate(zip(all_counts, found, strict=True)):
        real = []
        for batch, tail in batches:
            assert len(batch) == SIZE
            real += batch[: SIZE if tail is None else tail[rank]]
        assert real == [
            1000 * rank + 10 * number + index for number, count in enumerate(counts) for index in range(count)
        ]
    assert all([tail for _, tail in each] == [tail for _, tail in found[0]] for each in found)


@settings(max_examples=30)
@given(st.lists(full_batches, min_size=2, max_size=4))
def test_the_shortest_rank_ends_all_where_the_last_is_dropped(all_counts):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = together(all_counts, drop_last=True)
    assert [len(each) for each in found] == [min(map(len, all_counts))] * len(all_counts)
    assert all(tail is None for each in found for _, tail in each)


@pytest.mark.parametrize(
    ("all_counts", "drop_last", "says"),
    [
        (
            [[3, 3, 3], [3]],
            False,
            r"Ranks \[1\] ran out of data after 1 steps, before the others: until all have ended",
        ),
        ([[3, 3, 3], [3]], True, r"Ranks \[1\] ran out of data after 1 steps, before the others: all ranks end there"),
        ([[], [], [3]], False, r"Ranks \[0, 1\] ran out of data after 0 steps"),
        ([[3] * 40, [3] * 30, [3] * 40], False, r"Ranks \[1\] ran out of data after 30 steps"),
    ],
)
def test_it_is_said_once_who_ran_out(all_counts, drop_last, says):
    with pytest.warns(UserWarning, match=says + ".* Because") as said:
        together(all_counts, drop_last)
    assert len(said) == 1


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("counts", [[], [3], [3] * 16, [3] * 17])
def test_nothing_is_said_where_all_end_together(counts, drop_last):
    together([counts, counts], drop_last)


def test_an_uneven_pass_is_mentioned_in_the_first_epoch_only():
    def work(collectives):
        lockstep = Lockstep(DataShard(collectives.rank, 2), SIZE, False, "")
        for counts in ([3, 3], [3, 3, 3]):
            list(lockstep.run(collectives, batches_of(collectives.rank, counts if collectives.rank else [3])))
            forget_warnings()

    with pytest.warns(UserWarning, match="ran out of data") as said:
        FakeWorld(2).run(work)
    assert len(said) == 1


@pytest.mark.filterwarnings("ignore:Ranks")
def test_what_is_repeated_is_not_changed_by_the_script():
    def work(collectives):
        lockstep = Lockstep(DataShard(collectives.rank, 2), 1, False, "")
        own = ({"x": torch.ones(1), "y": "text"} for _ in range(1 if collectives.rank else 3))
        seen = []
        for batch in lockstep.run(collectives, own):
            data = batch.data if isinstance(batch, Marked) else batch
            seen.append(sorted(data))
            data.clear()
        return seen

    assert FakeWorld(2).run(work) == [[["x", "y"]] * 3] * 2


def test_a_rank_that_fails_to_read_stops_all():
    def fails(rank):
        yield torch.ones(SIZE)
        if rank == 1:
            raise OSError("no such file")
        yield torch.ones(SIZE)

    def work(collectives):
        lockstep, seen = Lockstep(DataShard(collectives.rank, 2), SIZE, False, ""), 0
        try:
            for _ in lockstep.run(collectives, fails(collectives.rank)):
                seen += 1
        except (OSError, RuntimeError) as error:
            return seen, type(error), "rank 1" in str(error)

    assert FakeWorld(2).run(work) == [(1, RuntimeError, True), (1, OSError, False)]


@pytest.mark.parametrize(("sizes", "questions"), [((400, 400), 9), ((400, 390), 9), ((1, 1), 1), ((8, 8), 2)])
@pytest.mark.filterwarnings("ignore:Ranks")
def test_ranks_ask_each_other_now_and_then(sizes, questions):
    def work(collectives):
        asked, ask = [], collectives.all_gather_later
        collectives.all_gather_later = lambda tensor: asked.append(tensor) or ask(tensor)
        batches = (torch.ones(SIZE) for _ in range(sizes[collectives.rank]))
        steps = sum(1 for _ in Lockstep(DataShard(collectives.rank, 2), SIZE, False, "").run(collectives, batches))
        return steps, len(asked)

    for steps, asked in FakeWorld(2).run(work):
        assert steps == max(sizes)
        assert asked <= questions


def test_what_was_read_before_a_failure_is_given_out():
    def fails():
        yield from torch.arange(5)
        raise OSError("no such file")

    def work(collectives):
        own = fails() if collectives.rank else iter(torch.arange(100))
        seen = []
        batches = Lockstep(DataShard(collectives.rank, 2), None, False, "").run(collectives, own)
        with pytest.raises((OSError, RuntimeError), match="no such file|rank 1"):
            seen.extend(map(int, batches))
        return seen

    assert FakeWorld(2).run(work) == [[0, 1, 2, 3, 4]] * 2


@pytest.mark.parametrize(
    ("batch", "ahead"),
    [
        (torch.zeros(1), READ_AHEAD),
        (torch.zeros(READ_AHEAD_BYTES // 16), 4),
        ({"text": ["a"], "number": 1}, READ_AHEAD),
        (object(), 1),
    ],
)
def test_how_much_is_read_ahead_follows_from_the_size_of_a_batch(batch, ahead):
    def work(collectives):
        read, most = 0, 0

        def reading():
            nonlocal read
            for _ in range(4 * READ_AHEAD):
                read += 1
                yield batch

        lockstep = Lockstep(DataShard(collectives.rank, 2), None, False, "")
        for given_out, _ in enumerate(lockstep.run(collectives, reading())):
            most = max(most, read - given_out)
        return most

    assert FakeWorld(2).run(work) == [1 + ahead] * 2  # and the one that is given out


def test_sizes_are_known_for_plain_data():
    assert size_of([torch.zeros(3), {"a": b"abc", "b": [1, None]}]) == 15
    assert size_of([torch.zeros(3), object()]) > READ_AHEAD_BYTES


@pytest.mark.parametrize(
    ("reports", "drop_last", "expected"),
    [
        ([(4, -1, GOES_ON, 0), (2, -1, GOES_ON, 0)], False, (2, False)),
        ([(4, -1, GOES_ON, 0), (2, 1, ENDED, 0)], False, (4, False)),
        ([(4, -1, ENDED, 0), (2, 1, ENDED, 0)], False, (4, True)),
        ([(0, -1, ENDED, 1), (0, -1, ENDED, 1)], False, (0, True)),
        ([(4, -1, GOES_ON, 0), (2, -1, ENDED, 0)], True, (2, True)),
        ([(1, -1, GOES_ON, 0), (2, -1, ENDED, 0)], True, (1, False)),
    ],
)
def test_what_is_agreed_on(reports, drop_last, expected):
    assert agree([Report(*each) for each in reports], drop_last) == expected


def test_a_failure_is_agreed_on_too():
    with pytest.raises(RuntimeError, match=r"ranks \[1\] failed"):
        agree([Report(1, -1, GOES_ON, 0), Report(0, -1, FAILED, 0)], False)


def test_ranks_with_the_same_share_count_once():
    def work(collectives):
        lockstep = Lockstep(DataShard(collectives.rank // 2, 2), SIZE, False, "")
        batches = batches_of(collectives.rank // 2, [3] if collectives.rank < 2 else [2])
        return [batch.tail.counts for batch in lockstep.run(collectives, batches)]

    assert FakeWorld(4).run(work) == [[(3, 2)]] * 4
