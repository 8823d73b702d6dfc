"""Streams that can tell their state are restored from it instead of being read again."""

from __future__ import annotations

import pickle
from itertools import chain

import pytest
from torch.utils.data import DataLoader, IterableDataset

from accelerate.data_loader import prepare_data_loader
from accelerate.data_loader.stateful import Snapshots
from tests.unit.data_loader.streams import Remembering


class Counter(IterableDataset):
    """Counts on from where its state says, and remembers what it was asked for."""

    def __init__(self, size):
        self.size = size
        self.place = 0
        self.read = []

    def __iter__(self):
        place, self.place = self.place, 0
        for index in range(place, self.size):
            self.place = index + 1
            self.read.append(index)
            yield index
        self.place = 0

    def state_dict(self):
        return {"place": self.place}

    def load_state_dict(self, state):
        self.place = state["place"]


def lists(loader):
    return [batch.tolist() for batch in loader]


@pytest.mark.parametrize("place", [1, 31, 32, 33, 70])
@pytest.mark.parametrize("ranks", [1, 3])
def test_a_stream_is_restored_and_not_read_again(on_ranks, place, ranks):
    def work(runtime):
        def make():
            return prepare_data_loader(
                Remembering(Counter(200 * ranks), batch_size=2), runtime=runtime, put_on_device=True
            )

        one, other = make(), make()
        batches = iter(one)
        for _ in range(place):
            next(batches)
        state = one.state_dict()
        other.load_state_dict(state)
        same = [batch.tolist() for batch in batches] == lists(other)
        return same, len(other.dataset.read), one.iteration == other.iteration

    found = on_ranks(ranks, work)
    assert all(same and epoch for same, _, epoch in found)
    read_again = found[0][1] - (200 - 2 * place) * ranks
    assert read_again <= 2 * 2 * Snapshots.EVERY
    assert all(read == 0 for _, read, _ in found[1:])


def test_a_loader_that_reads_a_stream_can_be_pickled():
    loader = prepare_data_loader(Remembering(Counter(8), batch_size=4), put_on_device=True)
    next(iter(loader))
    assert pickle.loads(pickle.dumps(loader)).progress.batches == 1


def test_a_state_is_a_copy(runtime):
    loader = Remembering(Counter(8), batch_size=2)
    batches = Snapshots(loader)
    next(batches)
    state = batches.before(1)
    assert state == [{"read": 0, "per_step": 1, "state": {"place": 0}}]
    assert state[0]["state"] is not loader.state_dict()


def test_the_state_of_the_wrapped_loader_alone_is_understood(runtime):
    loader = prepare_data_loader(Remembering(Counter(8), batch_size=2), runtime=runtime())
    loader.load_state_dict({"place": 4})
    assert lists(loader) == [[4, 5], [6, 7]]


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("workers", [0, 1])
def test_torchdata_is_the_engine(runtime, stream, workers):
    torchdata = pytest.importorskip("torchdata.stateful_dataloader", reason="torchdata is an extra")

    def make():
        data = Counter(40) if stream else range(40)
        user = DataLoader(data, batch_size=2, num_workers=workers, shuffle=None if stream else True)
        return prepare_data_loader(user, runtime=runtime(), use_stateful_dataloader=True)

    one, other = make(), make()
    assert isinstance(one, torchdata.StatefulDataLoader)
    assert one.use_stateful_dataloader
    batches = iter(one)
    for _ in range(5):
        next(batches)
    other.load_state_dict(one.state_dict())
    assert [batch.tolist() for batch in batches] == lists(other)
    assert sorted(chain(*lists(one))) == list(range(40))


def test_a_state_of_other_steps_is_not_used(on_ranks):
    """As many samples in a step, but of two batches of four: the state counts batches of another size."""

    def work(runtime, batch_size):
        user = Remembering(Counter(1200), batch_size=batch_size)
        return prepare_data_loader(user, runtime=runtime, put_on_device=True)

    def save(runtime):
        loader = work(runtime, 4)
        batches = iter(loader)
        for _ in range(70):
            next(batches)
        return loader.state_dict()

    state = on_ranks(2, save)[0]

    def resume(runtime):
        loader = work(runtime, 2)
        loader.load_state_dict(state)
        return next(iter(loader)).tolist()

    with pytest.warns(UserWarning, match="what was given out before is read again"):
        assert on_ranks(4, resume) == [[560, 561], [562, 563], [564, 565], [566, 567]]
