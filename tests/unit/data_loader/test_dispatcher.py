"""Rank 0 reads, all ranks get their part: each sample once, any shape, any leaf, and nobody is left waiting."""

from __future__ import annotations

import dataclasses
from collections import namedtuple

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader, Dataset, IterableDataset

from accelerate.data_loader import DataLoaderDispatcher, prepare_data_loader, skip_first_batches
from accelerate.data_loader.courier import Buffer, signature_of
from accelerate.data_loader.metrics import gather_for_metrics

Pair = namedtuple("Pair", "ids text")


@dataclasses.dataclass
class Sample:
    ids: torch.Tensor
    note: str


class Count(IterableDataset):
    def __init__(self, size):
        self.size = size

    def __iter__(self):
        return iter(range(self.size))


class Unreadable(Dataset):
    def __len__(self):
        return 6

    def __getitem__(self, index):
        raise AssertionError("only rank 0 reads")


def dispatching(runtime, loader, **options):
    return prepare_data_loader(loader, runtime=runtime, put_on_device=True, dispatch_batches=True, **options)


def lists(loader):
    return [batch.tolist() for batch in loader]


def gathered(runtime, loader):
    return [gather_for_metrics(runtime.collectives, runtime.gradient_state, batch) for batch in loader]


@pytest.mark.parametrize(
    ("size", "options", "expected"),
    [
        (16, {}, [[[0, 1, 2, 3], [8, 9, 10, 11]], [[4, 5, 6, 7], [12, 13, 14, 15]]]),
        (11, {}, [[[0, 1, 2, 3], [8, 9]], [[4, 5, 6, 7], [10, 0]]]),
        (7, {}, [[[0, 1, 2, 3]], [[4, 5, 6, 0]]]),
        (9, {}, [[[0, 1, 2, 3], [8]], [[4, 5, 6, 7], [0]]]),
        (11, {"drop_last": True}, [[[0, 1, 2, 3]], [[4, 5, 6, 7]]]),
        (6, {"split_batches": True}, [[[0, 1], [4]], [[2, 3], [5]]]),
        (5, {"split_batches": True}, [[[0, 1], [4]], [[2, 3], [0]]]),
        (0, {}, [[], []]),
    ],
)
def test_the_golden_parts(on_ranks, size, options, expected):
    options = dict(options)
    user = DataLoader(Count(size), batch_size=4, drop_last=options.pop("drop_last", False))
    assert on_ranks(2, lambda runtime: lists(dispatching(runtime, user, **options))) == expected


@settings(max_examples=60)
@given(st.integers(0, 30), st.integers(1, 5), st.integers(1, 4), st.booleans(), st.booleans())
def test_metrics_see_each_sample_once(on_ranks, size, batch_size, ranks, split, stream):
    batch_size = batch_size * ranks if split else batch_size

    def work(runtime):
        user = DataLoader(Count(size) if stream else range(size), batch_size=batch_size)
        found = gathered(runtime, dispatching(runtime, user, split_batches=split))
        return torch.cat(found).tolist() if found else []

    assert on_ranks(ranks, work) == [list(range(size))] * ranks


def test_only_rank_0_reads(on_ranks):
    def work(runtime):
        data = range(6) if runtime.topology.rank == 0 else Unreadable()
        return lists(dispatching(runtime, DataLoader(data, batch_size=1)))

    assert on_ranks(3, work) == [[[0], [3]], [[1], [4]], [[2], [5]]]


def test_a_shuffled_dataset_is_dispatched_in_one_order(on_ranks):
    def work(runtime):
        loader = dispatching(runtime, DataLoader(range(12), batch_size=2, shuffle=True))
        return [torch.cat(gathered(runtime, loader)).tolist() for _ in range(2)]

    first, second = on_ranks(2, work)
    assert first == second
    assert sorted(first[0]) == list(range(12))
    assert first[0] != first[1]


BATCHES = {
    "nested": lambda i: {"ids": torch.tensor([i, i + 10]), "more": (torch.ones(2, i), [torch.tensor([i, i]).bool()])},
    "text": lambda i: {"ids": torch.tensor([i, i]), "text": [f"a{i}", f"b{i}"]},
    "named tuple": lambda i: Pair(torch.tensor([i, i]), ["x", str(i)]),
    "dataclass": lambda i: Sample(torch.tensor([i, i]), f"note {i}"),
    "only text": lambda i: [f"a{i}", f"b{i}"],
    "dtypes": lambda i: [
        torch.tensor(i, dtype=kind).repeat(2) for kind in (torch.bfloat16, torch.int8, torch.complex64)
    ],
    "scalars": lambda i: {"loss": torch.tensor(float(i)), "step": i, "none": None},
    "empty": lambda i: {"ids": torch.empty(0, 3), "same": torch.tensor([i, i])},
    "growing": lambda i: {"image": torch.full((2, 3, 40 * (i + 1)), float(i))},
    "shrinking": lambda i: {"image": torch.full((2, 3, 400 // (i + 1)), float(i))},
    "sparse": lambda i: {"ids": torch.tensor([i, i]), "sparse": torch.eye(2).to_sparse()},
}


def comparable(data):
    if isinstance(data, torch.Tensor):
        return str(data.dtype), list(data.shape), data.to_dense().tolist()
    if isinstance(data, dict):
        return {key: comparable(value) for key, value in data.items()}
    if dataclasses.is_dataclass(data):
        return comparable(vars(data))
    return [type(data), *map(comparable, data)] if isinstance(data, (list, tuple)) else data


@pytest.mark.parametrize("name", BATCHES)
def test_batches_of_any_kind_arrive_as_they_were_read(on_ranks, name):
    class Batches(IterableDataset):
        def __iter__(self):
            return map(BATCHES[name], range(6))

    def work(runtime):
        user = DataLoader(Batches(), batch_size=None, collate_fn=lambda batch: batch)
        return [comparable(batch) for batch in prepare_data_loader(user, runtime=runtime, put_on_device=True)]

    expected = [comparable(BATCHES[name](i)) for i in range(6)]
    assert on_ranks(2, work) == [expected[0::2], expected[1::2]]


def test_widths_may_differ_between_batches_and_at_the_end(on_ranks):
    def pad(rows):
        width = max(map(len, rows))
        return torch.tensor([row + [-1] * (width - len(row)) for row in rows])

    rows = [[index] * (index % 4 + 1) for index in range(11)]

    def work(runtime):
        loader = dispatching(runtime, DataLoader(rows, batch_size=2, collate_fn=pad))
        first_columns = (batch[:, 0] for batch in loader)
        steps = [gather_for_metrics(runtime.collectives, runtime.gradient_state, column) for column in first_columns]
        return torch.cat(steps).tolist()

    assert on_ranks(2, work) == [list(range(11))] * 2


def test_split_batches_of_other_widths_are_completed_from_themselves(on_ranks):
    def pad(rows):
        width = max(map(len, rows))
        return torch.tensor([row + [-1] * (width - len(row)) for row in rows])

    rows = [[index] * (2 if index < 4 else 5) for index in range(7)]
    found = on_ranks(
        2,
        lambda runtime: lists(dispatching(runtime, DataLoader(rows, batch_size=4, collate_fn=pad), split_batches=True)),
    )
    assert [[row[0] for row in batches[-1]] for batches in found] == [[4, 5], [6, 4]]


def test_text_is_cut_by_rows(on_ranks):
    samples = [(index, f"s{index}") for index in range(5)]

    def work(runtime):
        loader = dispatching(runtime, DataLoader(samples, batch_size=4), split_batches=True)
        return [(ids.tolist(), list(names)) for ids, names in loader]

    assert on_ranks(2, work) == [
        [([0, 1], ["s0", "s1"]), ([4], ["s4"])],
        [([2, 3], ["s2", "s3"]), ([0], ["s0"])],
    ]


def test_a_slice_function_cuts_whole_steps(on_ranks):
    def every_other(data, part, process_index=None, num_processes=None):
        return data[process_index::num_processes]

    user = DataLoader(range(8), batch_size=2)
    found = on_ranks(2, lambda runtime: lists(dispatching(runtime, user, slice_fn_for_dispatch=every_other)))
    assert found == [[[0, 2], [4, 6]], [[1, 3], [5, 7]]]


def test_what_has_no_rows_cant_be_cut(on_ranks):
    user = DataLoader(range(4), batch_size=2, collate_fn=lambda samples: 7)
    with pytest.raises((ValueError, RuntimeError), match="batches of type int to cut into rows"):
        on_ranks(2, lambda runtime: list(dispatching(runtime, user, split_batches=True)))


def test_a_failure_of_rank_0_reaches_all(on_ranks):
    class Fails(Dataset):
        def __len__(self):
            return 4

        def __getitem__(self, index):
            if index == 3:
                raise KeyError("sample 3")
            return index

    def work(runtime):
        try:
            return lists(dispatching(runtime, DataLoader(Fails(), batch_size=1)))
        except (KeyError, RuntimeError) as error:
            return type(error), "KeyError: 'sample 3'" in str(error), runtime.gradient_state.in_dataloader

    assert on_ranks(2, work) == [(KeyError, False, False), (RuntimeError, True, False)]


def test_the_end_and_the_remainder_are_known_with_the_last_batch(on_ranks):
    def work(runtime):
        loader = dispatching(runtime, DataLoader(Count(11), batch_size=4))
        seen = [(runtime.gradient_state.end_of_dataloader, runtime.gradient_state.remainder) for _ in loader]
        return seen, loader.iteration, loader.total_batch_size

    assert on_ranks(2, work) == [([(False, -1), (True, 3)], 1, 8)] * 2
    assert on_ranks(1, work) == [([(False, -1), (False, -1), (True, 3)], 1, 4)]


@pytest.mark.parametrize(
    ("size", "options", "length"), [(10, {}, 3), (10, {"drop_last": True}, 2), (10, {"split_batches": True}, 5)]
)
def test_its_length_is_what_it_yields(on_ranks, size, options, length):
    options = dict(options)
    user = DataLoader(range(size), batch_size=2, drop_last=options.pop("drop_last", False))

    def work(runtime):
        loader = dispatching(runtime, user, **options)
        later = skip_first_batches(loader, 1)
        return len(loader), len(list(loader)), len(later), len(list(later)), type(later)

    assert on_ranks(2, work) == [(length, length, length - 1, length - 1, DataLoaderDispatcher)] * 2
    with pytest.raises(TypeError):
        len(on_ranks(1, lambda runtime: dispatching(runtime, DataLoader(Count(3))))[0])


SHUFFLED = {
    "stream": (lambda: DataLoader(Count(23), batch_size=2), {}),
    "shuffled": (lambda: DataLoader(range(23), batch_size=2, shuffle=True), {}),
    "own generator": (
        lambda: DataLoader(range(23), batch_size=2, shuffle=True, generator=torch.Generator().manual_seed(3)),
        {},
    ),
    "seedable": (lambda: DataLoader(range(23), batch_size=2, shuffle=True), {"use_seedable_sampler": True}),
    "split": (lambda: DataLoader(range(23), batch_size=4, shuffle=True), {"split_batches": True}),
    "whole items": (lambda: DataLoader(torch.arange(23), batch_size=None, shuffle=True), {}),
}


@pytest.mark.filterwarnings("ignore:Resuming inside an epoch of a stream")
@pytest.mark.parametrize("name", SHUFFLED)
def test_a_saved_place_is_found_again_with_what_is_repeated_at_the_end(on_ranks, name):
    make_loader, options = SHUFFLED[name]

    def work(runtime):
        one, other = (dispatching(runtime, make_loader(), **options) for _ in range(2))
        lists(one)
        batches = iter(one)
        next(batches), next(batches)
        other.load_state_dict(one.state_dict())
        expected, found = [batch.tolist() for batch in batches], lists(other)
        later = None if name in ("shuffled", "split", "whole items") else (lists(one), lists(other))
        return expected == found, one.iteration == other.iteration, later is None or later[0] == later[1]

    assert on_ranks(2, work) == [(True, True, True)] * 2


def test_ranks_that_share_a_model_get_the_same_part(on_ranks):
    class Mesh:
        mesh_dim_names = ("dp_replicate", "tp")

        def __getitem__(self, name):
            return self

        def size(self):
            return 2

    found = on_ranks(
        4, lambda runtime: lists(dispatching(runtime, DataLoader(range(4), batch_size=1), torch_device_mesh=Mesh()))
    )
    assert found == [[[0], [2]], [[0], [2]], [[1], [3]], [[1], [3]]]


def test_a_stream_is_dispatched_where_its_batches_go_to_the_device(runtime):
    user = DataLoader(Count(3), batch_size=2)
    assert type(prepare_data_loader(user, runtime=runtime(), put_on_device=True)) is DataLoaderDispatcher
    assert type(prepare_data_loader(user, runtime=runtime())) is not DataLoaderDispatcher
    assert type(prepare_data_loader(user, runtime=runtime(), put_on_device=True, dispatch_batches=False)) is not (
        DataLoaderDispatcher
    )


def test_bytes_are_staged_on_the_host_where_they_travel_from_another_device():
    buffer = Buffer(torch.device("meta"), 64)
    assert (buffer.size, buffer.staged.device.type, buffer.message.device.type) == (64, "cpu", "meta")
    assert buffer.loaded(16).is_meta
    assert buffer.loaded(16).shape == (16,)


def test_it_can_be_built_directly_and_uses_the_state_of_the_process():
    loader = DataLoaderDispatcher(range(6), batch_size=2, skip_batches=1, iteration=2)
    assert lists(loader) == [[2, 3], [4, 5]]
    assert (len(loader), loader.iteration) == (2, 3)


@pytest.mark.parametrize(
    ("one", "two", "alike"),
    [
        ({"a": torch.ones(2)}, {"a": torch.zeros(2)}, True),
        ({"a": torch.ones(2)}, {"b": torch.ones(2)}, False),
        ([torch.ones(2)], (torch.ones(2),), False),
        ([torch.ones(2)], [torch.ones(3)], False),
        ([torch.ones(2)], [torch.ones(2).int()], False),
        ([[torch.ones(2)], torch.ones(2)], [[torch.ones(2), torch.ones(2)]], False),
    ],
)
def test_what_is_built_alike_is_described_once(one, two, alike):
    assert (signature_of(one) == signature_of(two)) is alike


@pytest.mark.parametrize("data", ["text", {"a": 1}, [torch.eye(2).to_sparse()], Pair(torch.ones(1), torch.ones(1))])
def test_what_may_change_is_described_every_time(data):
    assert signature_of(data) is None
