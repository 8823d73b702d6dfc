"""A stream that every rank reads: each sample once, with repeats that can be told."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from accelerate.data_loader import DataLoaderShard, IterableDatasetShard, prepare_data_loader, skip_first_batches
from accelerate.data_loader.marked import Marked, MarkingCollate
from accelerate.data_loader.metrics import gather_for_metrics


class Count(IterableDataset):
    def __init__(self, size):
        self.size = size

    def __iter__(self):
        worker = get_worker_info()
        return iter(range(self.size) if worker is None else range(worker.id, self.size, worker.num_workers))


class Sized(Count):
    def __len__(self):
        return self.size


class Shuffled(IterableDataset):
    def __init__(self):
        self.generator = torch.Generator()

    def __iter__(self):
        return iter(torch.randperm(8, generator=self.generator).tolist())


class Listens(Count):
    def set_epoch(self, epoch):
        self.epoch = epoch


def shards(size, **options):
    return [
        IterableDatasetShard(Sized(size), batch_size=4, num_processes=2, process_index=rank, **options)
        for rank in (0, 1)
    ]


@pytest.mark.parametrize(
    ("size", "options", "expected"),
    [
        (0, {}, [[], []]),
        (1, {}, [[0, 0, 0, 0], [0, 0, 0, 0]]),
        (3, {}, [[0, 1, 2, 0], [1, 2, 0, 1]]),
        (10, {}, [[0, 1, 2, 3, 8, 9, 0, 1], [4, 5, 6, 7, 2, 3, 4, 5]]),
        (10, {"drop_last": True}, [[0, 1, 2, 3], [4, 5, 6, 7]]),
        (10, {"split_batches": True}, [[0, 1, 4, 5, 8, 9], [2, 3, 6, 7, 0, 1]]),
        (10, {"split_batches": True, "drop_last": True}, [[0, 1, 4, 5], [2, 3, 6, 7]]),
    ],
)
def test_the_golden_streams(size, options, expected):
    found = shards(size, **options)
    assert [list(shard) for shard in found] == expected
    assert [len(shard) for shard in found] == [len(each) for each in expected]


def test_a_stream_that_cant_be_split_is_refused():
    with pytest.raises(ValueError, match="batch_size=2 or 4"):
        IterableDatasetShard(Count(4), batch_size=3, num_processes=2, split_batches=True)


def test_a_stream_with_a_generator_is_shuffled_by_epoch():
    shard = IterableDatasetShard(Shuffled(), batch_size=2, num_processes=2)
    shard.set_epoch(3)
    order = torch.randperm(8, generator=torch.Generator().manual_seed(3)).tolist()
    assert list(shard) == order[:2] + order[4:6]


def test_epochs_reach_the_stream(on_ranks):
    def work(runtime):
        dataset = Listens(4)
        loader = prepare_data_loader(DataLoader(dataset), runtime=runtime)
        list(loader)
        list(loader)
        return dataset.epoch, loader.dataset.epoch

    assert on_ranks(2, work) == [(1, 1)] * 2


@settings(max_examples=60)
@given(
    st.integers(0, 40),
    st.integers(1, 6),
    st.integers(1, 4),
    st.booleans(),
    st.booleans(),
    st.sampled_from([Count, Sized]),
)
def test_the_union_is_the_stream_and_metrics_see_each_sample_once(
    on_ranks, size, batch_size, ranks, split, drop_last, kind
):
    batch_size = batch_size * ranks if split else batch_size

    def work(runtime):
        user = DataLoader(kind(size), batch_size=batch_size, drop_last=drop_last)
        loader = prepare_data_loader(user, runtime=runtime, split_batches=split)
        batches, gathered = [], []
        for batch in loader:
            batches.append(batch.tolist())
            gathered += gather_for_metrics(runtime.collectives, runtime.gradient_state, batch).tolist()
        if kind is Sized:
            assert len(loader) == len(batches)
        return batches, gathered

    found = on_ranks(ranks, work)
    round_size = batch_size if split else batch_size * ranks
    left = size % round_size
    seen = Counter(index for batches, _ in found for batch in batches for index in batch)
    if drop_last:
        assert seen == Counter(range(size - left))
    elif ranks > 1:
        assert seen == Counter([*range(size), *(index % size for index in range(round_size - left) if left)])
    else:
        assert seen == Counter(range(size))
    assert all(gathered == sorted(set(seen)) for _, gathered in found)


@pytest.mark.parametrize("workers", [1, 2])
def test_streams_of_several_workers_end_each_by_itself(on_ranks, workers):
    def work(runtime):
        loader = prepare_data_loader(DataLoader(Count(11), batch_size=2, num_workers=workers), runtime=runtime)
        assert type(loader) is DataLoaderShard
        return [
            index
            for batch in loader
            for index in gather_for_metrics(runtime.collectives, runtime.gradient_state, batch).tolist()
        ]

    one, two = on_ranks(2, work)
    assert one == two
    assert sorted(one) == list(range(11))


def test_the_remainder_of_a_stream_is_known_when_it_ends(on_ranks):
    def work(runtime):
        seen = []
        for size in (5, 8):
            loader = prepare_data_loader(DataLoader(Sized(size), batch_size=2), runtime=runtime)
            seen.append([(loader.end_of_dataloader, runtime.gradient_state.remainder) for _ in loader])
        return seen, loader.total_batch_size, loader.batch_size, loader.collate_fn

    collate = DataLoader([]).collate_fn
    expected = [[(False, 1), (True, 1)], [(False, 0), (True, 0)]]
    assert on_ranks(2, work) == [(expected, 4, 2, collate)] * 2


def test_items_that_are_whole_batches(on_ranks):
    class Items(IterableDataset):
        def __iter__(self):
            return (torch.full((index + 1,), index) for index in range(3))

    def work(runtime):
        loader = prepare_data_loader(DataLoader(Items(), batch_size=None), runtime=runtime)
        gathered = [gather_for_metrics(runtime.collectives, runtime.gradient_state, batch).tolist() for batch in loader]
        return gathered, loader.total_batch_size, loader.remainder

    assert on_ranks(2, work) == [([[0, 1, 1], [2, 2, 2]], None, -1)] * 2


def test_a_stream_can_begin_later(on_ranks):
    def work(runtime):
        loader = prepare_data_loader(DataLoader(Count(10), batch_size=2), runtime=runtime)
        later = skip_first_batches(loader, 1)
        return [batch.tolist() for batch in later], (loader.iteration, later.iteration)

    assert on_ranks(2, work) == [([[4, 5], [8, 9]], (1, 1)), ([[6, 7], [0, 1]], (1, 1))]


def test_a_saved_place_in_a_stream_is_found_by_reading(on_ranks):
    def work(runtime):
        one, other = (prepare_data_loader(DataLoader(Count(20), batch_size=2), runtime=runtime) for _ in range(2))
        batches = iter(one)
        next(batches), next(batches)
        other.load_state_dict(one.state_dict())
        return [batch.tolist() for batch in batches] == [batch.tolist() for batch in other]

    with pytest.warns(UserWarning, match="a stream that has no state"):
        assert on_ranks(2, work) == [True, True]


def test_marks_go_along():
    tail = object()
    marked = Marked({"ids": torch.ones(2)}, tail)
    moved = marked.to("meta")
    assert (moved.data["ids"].device.type, moved.tail) == ("meta", tail)
    collate = MarkingCollate(list)
    assert collate([1, 2]) == [1, 2]
    batch = collate([1, Marked(2, tail)])
    assert (batch.data, batch.tail) == ([1, 2], tail)
    assert collate(Marked((1, 2), tail)).data == [1, 2]


def test_marks_can_be_pinned(monkeypatch):
    monkeypatch.setattr("accelerate.data_loader.marked.pin_memory", lambda data, device: (data, device))
    assert Marked(1, None).pin_memory("cuda").data == (1, "cuda")
