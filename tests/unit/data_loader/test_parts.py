"""The small parts: shares of a mesh, moving, random states, skipping other people's loaders, the mixin, torchdata."""

from __future__ import annotations

import collections
import sys

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset

from accelerate.data_loader import (
    DataLoaderAdapter,
    DataLoaderStateMixin,
    DataShard,
    SkipBatchSampler,
    SkipDataLoader,
    skip_first_batches,
)
from accelerate.data_loader.mover import NoBatch, is_settled, mover_to
from accelerate.data_loader.rng import synchronize_rng_states
from accelerate.state.gradient import GradientState


class Mesh:
    def __init__(self, **sizes):
        self.mesh_dim_names = tuple(sizes)
        self.sizes = sizes

    def __getitem__(self, name):
        return collections.namedtuple("Axis", "size")(lambda: self.sizes[name])


class Stream(IterableDataset):
    def __iter__(self):
        return iter(range(7))


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ({"dp_replicate": 4}, [(0, 4), (1, 4), (2, 4), (3, 4)]),
        ({"dp_replicate": 2, "tp": 2}, [(0, 2), (0, 2), (1, 2), (1, 2)]),
        ({"dp_shard": 2, "cp": 2}, [(0, 2), (0, 2), (1, 2), (1, 2)]),
        ({"dp_replicate": 2, "dp_shard": 2}, [(0, 4), (1, 4), (2, 4), (3, 4)]),
        ({"cp": 2, "tp": 2}, [(0, 1)] * 4),
        ({"tp": 2}, [(0, 2), (0, 2), (1, 2), (1, 2)]),
    ],
)
def test_ranks_that_hold_parts_of_one_model_read_the_same_share(sizes, expected):
    assert [DataShard.of(rank, 4, Mesh(**sizes)) for rank in range(4)] == [DataShard(*each) for each in expected]


def test_flattened_axes_do_not_count_twice():
    assert DataShard.of(3, 4, Mesh(dp_shard=2, cp=2, dp_shard_cp=4, dp=2)) == DataShard(1, 2)


@pytest.mark.parametrize(("index", "count"), [(-1, 2), (2, 2), (0, 0)])
def test_shares_that_do_not_exist(index, count):
    with pytest.raises(ValueError, match="numbered from 0"):
        DataShard(index, count)


class Movable:
    def __init__(self):
        self.calls = []

    def to(self, device, non_blocking=False):
        self.calls.append(str(device))
        return self


@pytest.mark.parametrize(
    ("data", "known"),
    [
        (torch.ones(1), True),
        ([torch.ones(1), {"a": (torch.ones(1), "text", 3, None)}], True),
        (collections.UserDict(a=torch.ones(1)), True),
        (collections.namedtuple("Pair", "a b")(torch.ones(1), 2), True),
        (torch.ones(1, device="meta"), False),
        ({"a": [torch.ones(1), torch.ones(1, device="meta")]}, False),
        ([Movable()], False),
    ],
)
def test_what_is_on_the_cpu_is_found_out_without_moving_it(data, known):
    assert is_settled(data, True) is known


def test_tensors_are_not_looked_at_where_there_is_no_other_device():
    assert is_settled({"a": [torch.ones(1, device="meta")]}, False)
    assert is_settled(torch.ones(1, device="meta"), False)
    assert not is_settled([Movable()], False)


@pytest.mark.parametrize("others", [True, False])
def test_nothing_is_moved_nor_rebuilt_on_the_cpu_but_what_asks_for_it(monkeypatch, others):
    monkeypatch.setattr("accelerate.data_loader.mover.others_exist", lambda: others)
    batch = {"ids": torch.ones(2), "names": ["a"]}
    mover = mover_to("cpu")
    assert list(mover.ahead(iter([batch]))) == [batch]
    assert mover.arrive(batch) is batch
    assert mover.settled is (NoBatch if others else torch.Tensor)
    odd = Movable()
    assert mover.arrive([odd, 1]) == [odd, 1]
    assert odd.calls == ["cpu"]
    assert mover_to(None).arrive(odd) is odd
    assert odd.calls == ["cpu"]


def test_other_devices_get_every_tensor():
    (moved,) = mover_to("meta", non_blocking=True).ahead(iter([{"ids": torch.ones(2), "names": ["a"]}]))
    assert moved["ids"].is_meta
    assert moved["names"] == ["a"]


def test_random_states_are_those_of_rank_0(on_ranks):
    def work(runtime):
        generator = torch.Generator().manual_seed(runtime.topology.rank)
        synchronize_rng_states(runtime, ["torch", "cpu", "generator"][::2], generator)
        synchronize_rng_states(runtime, ["generator"])
        return torch.rand(2, generator=generator).tolist()

    one, two = on_ranks(2, work)
    assert one == two


@pytest.mark.parametrize(
    ("rng_type", "says"), [("cuda", "this run computes on 'cpu'"), ("touch", "Did you mean 'torch'")]
)
def test_random_states_that_do_not_exist_are_refused(runtime, rng_type, says):
    with pytest.raises(ValueError, match=says):
        synchronize_rng_states(runtime(), [rng_type])


def test_a_plain_loader_stays_plain():
    later = skip_first_batches(DataLoader(range(7), batch_size=2), 2)
    assert type(later) is DataLoader
    assert [batch.tolist() for batch in later] == [[4, 5], [6]]
    assert len(later) == 2
    whole = skip_first_batches(DataLoader(torch.arange(4), batch_size=None), 3)
    assert [item.item() for item in whole] == [3]


@pytest.mark.parametrize("loader", [DataLoader(Stream(), batch_size=2), [[0, 1], [2, 3], [4, 5], [6]]])
def test_what_can_only_be_read_in_sequence_is_read(loader):
    later = skip_first_batches(loader, 2)
    state = GradientState()
    assert type(later) is SkipDataLoader
    seen = [(list(map(int, batch)), state.end_of_dataloader) for batch in later]
    assert seen == [([4, 5], False), ([6], True)]
    assert not state.in_dataloader


def test_a_skipping_loader_can_be_built_directly(runtime):
    later = SkipDataLoader(range(10), skip_batches=1, batch_size=4, runtime=runtime())
    assert [batch.tolist() for batch in later] == [[4, 5, 6, 7], [8, 9]]
    assert len(later) == 2
    assert len(SkipDataLoader(range(10), skip_batches=9, batch_size=4, runtime=runtime())) == 0


def test_a_skipping_batch_sampler_has_the_sizes_of_the_one_inside():
    sampler = torch.utils.data.BatchSampler(range(10), 3, False)
    later = SkipBatchSampler(sampler, skip_batches=2)
    assert (list(later), len(later), later.total_length) == ([[6, 7, 8], [9]], 2, 4)
    assert (later.batch_size, later.drop_last, later.sampler) == (3, False, range(10))


class Own(DataLoaderStateMixin):
    def __init__(self, **attributes):
        self.gradient_state = GradientState()
        vars(self).update(attributes)


@pytest.mark.parametrize(
    ("attributes", "remainder"),
    [
        ({"dataset": range(10), "total_batch_size": 4}, 2),
        ({"dataset": range(10), "total_batch_size": 4, "_drop_last": True}, -1),
        ({"dataset": Stream(), "total_batch_size": 4}, -1),
        ({"dataset": range(10)}, -1),
        ({}, -1),
    ],
)
def test_a_loader_of_other_people_registers_itself(attributes, remainder):
    loader = Own(**attributes)
    assert (Own.end_of_dataloader, Own.remainder) == (False, -1)
    loader.begin()
    state = GradientState()
    assert state.active_dataloader is loader
    loader.end_of_dataloader = True
    assert (state.end_of_dataloader, state.remainder) == (True, remainder)
    loader.end()
    assert not state.in_dataloader


def test_an_adapter_hands_on_what_it_does_not_know():
    adapter = DataLoaderAdapter(range(6), batch_sampler=[[0, 1], [2]])
    assert isinstance(adapter, DataLoader)
    assert (len(adapter), adapter.num_workers) == (2, 0)
    assert not adapter.use_stateful_dataloader
    adapter.base_dataloader.state_dict = lambda: {"place": 1}
    adapter.base_dataloader.load_state_dict = lambda state: setattr(adapter, "loaded", state)
    adapter.load_state_dict(adapter.state_dict())
    assert adapter.loaded == {"place": 1}
    with pytest.raises(AttributeError, match="base_dataloader"):
        _ = DataLoaderAdapter.__new__(DataLoaderAdapter).anything


def test_a_missing_torchdata_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "torchdata.stateful_dataloader", None)
    with pytest.raises(ImportError, match="pip install 'torchdata"):
        DataLoaderAdapter(range(6), use_stateful_dataloader=True)
