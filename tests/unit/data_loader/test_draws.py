"""A resumed pass says when what a dataset draws is not what it would have drawn."""

from __future__ import annotations

import random
import warnings

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset

from accelerate.base.messages import forget_warnings
from accelerate.data_loader import prepare_data_loader
from accelerate.data_loader.draws import Watch
from accelerate.data_loader.iterable import has_state, shuffle_states

DRAWS = {
    "torch": lambda: torch.rand(()).item(),
    "numpy": lambda: np.random.rand(),
    "python": random.random,
    "nothing": lambda: 0.0,
}


class Drawing(Dataset):
    def __init__(self, draw):
        self.draw = draw

    def __len__(self):
        return 8

    def __getitem__(self, index):
        return index, self.draw()


def said_on_resuming(runtime, draw, **loading):
    def make():
        user = DataLoader(Drawing(draw), batch_size=2, **loading)
        return prepare_data_loader(user, runtime=runtime())

    one, other = make(), make()
    next(iter(one))
    other.load_state_dict(one.state_dict())
    forget_warnings()
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        assert [index.tolist() for index, _ in other] == [[2, 3], [4, 5], [6, 7]]
        assert len(list(other)) == 4
    return [str(each.message) for each in said if "draws from global random" in str(each.message)]


@pytest.mark.parametrize("name", DRAWS)
def test_drawing_is_noticed_once(runtime, name):
    assert len(said_on_resuming(runtime, DRAWS[name])) == (name != "nothing")


def quiet_init(worker):
    np.random.seed(worker)


@pytest.mark.parametrize("name", ["numpy", "nothing"])
def test_the_first_worker_looks(name):
    watch = Watch(list, quiet_init)
    watch.begin(0)
    DRAWS[name]()
    forget_warnings()
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        assert (watch([1]), watch([2])) == ([1], [2])
    assert len(said) == (name != "nothing")
    watch.begin(1)
    DRAWS["numpy"]()
    assert watch([3]) == [3], "the others do not look"


class Inner:
    def __init__(self, seed=None, **inner):
        self.generator = np.random.default_rng(seed)
        self.__dict__.update(inner)


class BufferShuffledInner(Inner):
    pass


class LibraryStream(IterableDataset):
    """Built as the streams of the `datasets` library are, as far as is looked at."""

    def __init__(self, inner):
        self._ex_iterable = inner

    def __iter__(self):
        return iter(range(8))

    def state_dict(self):
        return {}

    def load_state_dict(self, state):
        raise AssertionError("its state is not complete")


def test_a_shuffle_buffer_is_in_no_state():
    assert has_state(LibraryStream(Inner(1)))
    assert not has_state(LibraryStream(Inner(1, ex_iterables=[Inner(1), Inner(1, ex_iterable=BufferShuffledInner(1))])))


@pytest.mark.parametrize("seed", [1, None])
def test_a_stream_that_ranks_shuffle_differently_is_refused(on_ranks, seed):
    def work(runtime):
        stream = LibraryStream(BufferShuffledInner(seed))
        try:
            return len(list(prepare_data_loader(DataLoader(stream, batch_size=2), runtime=runtime)))
        except ValueError as error:
            return "pass a seed to `shuffle`" in str(error)

    assert on_ranks(2, work) == ([True, True] if seed is None else [2, 2])


def test_other_streams_are_not_shuffled_by_the_library():
    assert shuffle_states(LibraryStream(None)) == shuffle_states(object()) == []
