"""Every sample goes to exactly one rank, but for the documented repeats, and `len` tells the truth."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import BatchSampler, RandomSampler, SequentialSampler, SubsetRandomSampler

from accelerate.data_loader import BatchSamplerShard, SeedableRandomSampler, SkipBatchSampler
from accelerate.data_loader.sampler_shards import SamplerShard, iterate_from


class Plain(BatchSampler):
    """Torch's batch sampler under another name, so that it has to be read through."""


class Chosen:
    """A batch sampler of other people: lists of any length."""

    def __init__(self, batches, batch_size=None):
        self.batches = batches
        if batch_size is not None:
            self.batch_size = batch_size

    def __iter__(self):
        return iter(self.batches)

    def __len__(self):
        return len(self.batches)


def batches_of(size, batch_size, drop_last=False, kind=BatchSampler):
    return kind(SequentialSampler(range(size)), batch_size, drop_last)


def dealt(inner, ranks, **options):
    """Return what each rank yields; `len` has to agree."""
    shards = [BatchSamplerShard(inner, ranks, rank, **options) for rank in range(ranks)]
    found = [list(shard) for shard in shards]
    assert [len(shard) for shard in shards] == [len(each) for each in found]
    return found


@pytest.mark.parametrize("kind", [BatchSampler, Plain])
@pytest.mark.parametrize(
    ("size", "batch_size", "options", "last"),
    [
        (22, 3, {}, [[18, 19, 20], [21, 0, 1]]),
        (21, 3, {}, [[18, 19, 20], [0, 1, 2]]),
        (20, 3, {}, [[18, 19, 0], [1, 2, 3]]),
        (2, 3, {}, [[0, 1, 0], [1, 0, 1]]),
        (1, 3, {}, [[0, 0, 0], [0, 0, 0]]),
        (22, 3, {"even_batches": False}, [[18, 19, 20], [21]]),
        (21, 3, {"even_batches": False}, [[18, 19, 20], [15, 16, 17]]),
        (20, 3, {"even_batches": False}, [[18, 19], [15, 16, 17]]),
        (2, 3, {"even_batches": False}, [[0, 1], None]),
        (20, 3, {"drop_last": True}, [[12, 13, 14], [15, 16, 17]]),
        (5, 3, {"drop_last": True}, [None, None]),
        (21, 4, {"split_batches": True}, [[20, 0], [1, 2]]),
        (2, 4, {"split_batches": True}, [[0, 1], [0, 1]]),
        (21, 4, {"split_batches": True, "even_batches": False}, [[20], [18, 19]]),
        (22, 4, {"split_batches": True, "drop_last": True}, [[16, 17], [18, 19]]),
        (0, 3, {}, [None, None]),
    ],
)
def test_the_last_batches_are_the_golden_ones(kind, size, batch_size, options, last):
    options = dict(options)
    inner = batches_of(size, batch_size, options.pop("drop_last", False), kind)
    found = [list(BatchSamplerShard(inner, 2, rank, **options)) for rank in range(2)]
    assert [batches[-1] if batches else None for batches in found] == last


def test_whole_batches_are_dealt_in_turn():
    assert dealt(batches_of(22, 3), 2) == [
        [[0, 1, 2], [6, 7, 8], [12, 13, 14], [18, 19, 20]],
        [[3, 4, 5], [9, 10, 11], [15, 16, 17], [21, 0, 1]],
    ]


@pytest.mark.parametrize(
    ("batches", "ranks", "even", "expected"),
    [
        ([[0, 1], [2], [3, 4, 5]], 2, True, [[[0, 1], [3, 4, 5]], [[2], [0, 1]]]),
        ([[0, 1], [2], [3, 4, 5]], 2, False, [[[0, 1], [3, 4, 5]], [[2]]]),
        ([[0, 1], [2], [3, 4, 5]], 3, True, [[[0, 1]], [[2]], [[3, 4, 5]]]),
        ([[0, 1], [2], [3, 4, 5], [6], [7, 8]], 3, True, [[[0, 1], [6]], [[2], [7, 8]], [[3, 4, 5], [0, 1]]]),
        ([[0]], 3, True, [[[0]], [[0]], [[0]]]),
        ([[0]], 2, False, [[[0]], []]),
    ],
)
def test_batches_of_any_size_are_repeated_as_a_whole(batches, ranks, even, expected):
    assert dealt(Chosen(batches), ranks, even_batches=even) == expected


def test_a_short_batch_before_the_end_is_taken_as_it_is():
    batches = [[0, 1], [2], [3, 4], [5]]
    assert dealt(Chosen(batches, batch_size=2), 2) == [[[0, 1], [3, 4]], [[2], [5, 0]]]
    assert batches == [[0, 1], [2], [3, 4], [5]], "the batches of the user were changed"


@given(
    size=st.integers(0, 60),
    batch_size=st.integers(1, 8),
    ranks=st.integers(1, 5),
    drop_last=st.booleans(),
    even=st.booleans(),
    split=st.booleans(),
)
def test_the_union_is_the_dataset(size, batch_size, ranks, drop_last, even, split):
    batch_size = batch_size * ranks if split else batch_size
    inner = batches_of(size, batch_size, drop_last)
    found = dealt(inner, ranks, split_batches=split, even_batches=even)
    shards = [
        BatchSamplerShard(batches_of(size, batch_size, drop_last, Plain), ranks, rank, split, even)
        for rank in range(ranks)
    ]
    assert found == [list(shard) for shard in shards], "reading through and computing disagree"

    round_size = batch_size if split else batch_size * ranks
    left = size % round_size if ranks > 1 else (size % batch_size if drop_last else 0)
    seen = Counter(index for batches in found for batch in batches for index in batch)
    if drop_last:
        assert seen == Counter(range(size - left))
    elif even and ranks > 1 and left:
        repeats = [index % size for index in range(round_size - left)]
        assert seen == Counter([*range(size), *repeats])
        assert len({len(batches) for batches in found}) == 1
        assert {len(batch) for batches in found for batch in batches} == {round_size // ranks}
    else:
        assert seen == Counter(range(size))


@given(st.data())
def test_starting_later_gives_the_tail(data):
    size, batch_size, ranks = data.draw(st.integers(0, 40)), data.draw(st.integers(1, 6)), data.draw(st.integers(1, 4))
    start, even = data.draw(st.integers(0, 20)), data.draw(st.booleans())
    kind = data.draw(st.sampled_from([BatchSampler, Plain]))
    for rank in range(ranks):
        shard = BatchSamplerShard(batches_of(size, batch_size, kind=kind), ranks, rank, even_batches=even)
        skipping = SkipBatchSampler(shard, start)
        assert list(skipping) == list(shard)[start:]
        assert len(skipping) == len(list(shard)[start:])
        assert list(SkipBatchSampler(skipping, 1)) == list(shard)[start + 1 :]


@pytest.mark.parametrize("replacement", [False, True])
@pytest.mark.parametrize("num_samples", [None, 7, 40])
@pytest.mark.parametrize("ranks", [1, 3])
def test_random_orders_are_those_of_torch_and_leave_the_generator_where_torch_does(replacement, num_samples, ranks):
    def sampler():
        generator = torch.Generator().manual_seed(3)
        return RandomSampler(range(20), replacement=replacement, num_samples=num_samples, generator=generator)

    expected, ours = sampler(), [sampler() for _ in range(ranks)]
    for _ in range(2):
        order = list(expected)
        found = [
            list(BatchSamplerShard(BatchSampler(each, 2, False), ranks, rank, even_batches=False))
            for rank, each in enumerate(ours)
        ]
        batches = [batch for one_round in zip_longest_flat(found) for batch in one_round]
        assert [index for batch in batches for index in batch] == order
        assert all(torch.equal(each.generator.get_state(), expected.generator.get_state()) for each in ours)


def zip_longest_flat(found):
    longest = max(map(len, found))
    return [[batches[place] for batches in found if place < len(batches)] for place in range(longest)]


def test_a_skip_draws_the_same_permutation():
    sampler = RandomSampler(range(20), generator=torch.Generator().manual_seed(3))
    again = RandomSampler(range(20), generator=torch.Generator().manual_seed(3))
    assert list(iterate_from(BatchSampler(sampler, 3, False), 4)) == list(BatchSampler(again, 3, False))[4:]
    assert torch.equal(sampler.generator.get_state(), again.generator.get_state())


def test_samplers_that_are_not_known_are_read_through():
    sampler = SubsetRandomSampler([5, 6, 7, 8, 9], generator=torch.Generator().manual_seed(0))
    found = [list(BatchSamplerShard(BatchSampler(sampler, 2, False), 1, 0))]
    assert sorted(index for batch in found[0] for index in batch) == [5, 6, 7, 8, 9]


def test_the_shares_of_a_seedable_sampler_move_on_by_epoch():
    def shard(rank):
        return BatchSamplerShard(BatchSampler(SeedableRandomSampler(range(8), data_seed=1), 2, False), 2, rank)

    expected = SeedableRandomSampler(range(8), data_seed=1)
    shards = [shard(0), shard(1)]
    for _ in range(2):
        found = [list(each) for each in shards]
        assert [index for pair in zip(*found, strict=True) for batch in pair for index in batch] == list(expected)


def test_ranks_can_be_changed_afterwards():
    shard = BatchSamplerShard(batches_of(8, 2), 2, 1)
    assert list(shard) == [[2, 3], [6, 7]]
    shard.num_processes, shard.process_index = 1, 0
    assert list(shard) == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert len(shard) == 4
    assert shard.total_length == 4


def test_the_sampler_inside_can_be_read_and_replaced():
    shard = BatchSamplerShard(batches_of(4, 2), 1, 0)
    assert isinstance(shard.sampler, SequentialSampler)
    shard.sampler = [3, 2, 1, 0]
    assert list(shard) == [[3, 2], [1, 0]]
    assert SkipBatchSampler(shard, 1).sampler == [3, 2, 1, 0]
    assert BatchSamplerShard(Chosen([[0]]), 1, 0).sampler is None


@pytest.mark.parametrize(
    ("size", "ranks", "even", "expected"),
    [(4, 2, True, [[0, 2], [1, 3]]), (5, 2, True, [[0, 2, 4], [1, 3, 0]]), (5, 2, False, [[0, 2, 4], [1, 3]])],
)
def test_single_items_are_shared_out_whole(size, ranks, even, expected):
    shards = [SamplerShard(SequentialSampler(range(size)), ranks, rank, even) for rank in range(ranks)]
    assert [list(shard) for shard in shards] == expected
    assert [len(shard) for shard in shards] == [len(each) for each in expected]
    assert list(iterate_from(shards[0], 1)) == expected[0][1:]


def test_even_batches_of_single_items_is_assignable():
    shard = SamplerShard(SequentialSampler(range(3)), 2, 1)
    shard.even_batches = False
    assert not shard.even_batches
    assert list(shard) == [1]


@pytest.mark.parametrize(
    ("batch_size", "ranks", "says"),
    [(3, 2, "batch_size=2 or 4"), (1, 2, "batch_size=2,"), (7, 3, "batch_size=6 or 9"), (None, 2, "must be known")],
)
def test_a_batch_that_cant_be_split_is_refused_with_the_nearest_sizes(batch_size, ranks, says):
    inner = Chosen([[0]]) if batch_size is None else batches_of(8, batch_size)
    with pytest.raises(ValueError, match=says) as refusal:
        BatchSamplerShard(inner, ranks, 0, split_batches=True)
    assert all(part in str(refusal.value) for part in ("Given:", "Why not:", "Allowed:", "What to do:"))


def test_a_batch_larger_than_announced_is_not_cut_short():
    with pytest.raises(ValueError, match="yields a batch of 5"):
        list(BatchSamplerShard(Chosen([[0, 1, 2, 3, 4]], batch_size=4), 2, 0, split_batches=True))
