"""Inside `join_uneven_inputs`, prepared loaders give every rank what is left, whatever deals it out."""

from __future__ import annotations

import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader, IterableDataset

from accelerate.cluster.topology import Topology
from accelerate.comm.fake import FakeWorld
from accelerate.data_loader import prepare_data_loader
from accelerate.devices.select import default_device
from accelerate.state.gradient import GradientState
from accelerate.state.runtime import Runtime
from accelerate.strategies.join import even_batches_set


class Stream(IterableDataset):
    def __iter__(self):
        return iter(range(5))


def on_two_ranks(function):
    def run(collectives):
        state = type("OwnGradientState", (GradientState,), {"_shared_state": {}})()
        topology = Topology(collectives.rank, collectives.world_size)
        return function(Runtime(topology, default_device(), collectives, state))

    return FakeWorld(2).run(run)


@pytest.mark.parametrize(
    "user",
    [
        lambda: DataLoader(range(5), batch_size=1),
        lambda: DataLoader(range(5), batch_size=None),
        lambda: DataLoader(torch.arange(5), batch_size=None, sampler=BatchSampler(range(5), 1, False)),
    ],
)
def test_loaders_are_uneven_inside(user):
    def work(runtime):
        loader = prepare_data_loader(user(), runtime=runtime)
        with even_batches_set([loader], False):
            inside = len(list(loader))
        return inside, len(list(loader))

    assert on_two_ranks(work) == [(3, 3), (2, 3)]


def test_streams_stay_as_they_are_and_it_is_said():
    def work(runtime):
        loader = prepare_data_loader(DataLoader(Stream(), batch_size=1), runtime=runtime)
        with even_batches_set([loader], False):
            return len(list(loader))

    with pytest.warns(UserWarning, match="not dealt out by index"):
        assert on_two_ranks(work) == [3, 3]
