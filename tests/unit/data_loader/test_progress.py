"""A saved place is found again: what was seen before and after is what one run sees."""

from __future__ import annotations

import io

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, WeightedRandomSampler

from accelerate.data_loader import prepare_data_loader, skip_first_batches
from accelerate.data_loader.metrics import gather_for_metrics

from .streams import OfAnySize

MAKES = {
    "sequential": lambda size: DataLoader(range(size), batch_size=2),
    "shuffled": lambda size: DataLoader(range(size), batch_size=2, shuffle=True),
    "own generator": lambda size: DataLoader(
        range(size), batch_size=2, shuffle=True, generator=torch.Generator().manual_seed(9)
    ),
    "weighted": lambda size: DataLoader(
        range(size), batch_size=2, sampler=WeightedRandomSampler(torch.ones(size), size, True)
    ),
    "whole items": lambda size: DataLoader(torch.arange(size).reshape(-1, 1), batch_size=None, shuffle=True),
}


def make(name, runtime, size=11, **options):
    return prepare_data_loader(MAKES[name](size), runtime=runtime, **options)


def lists(loader):
    return [batch.tolist() for batch in loader]


def travelled(state):
    """Return a state as it comes back from a file that holds plain data only."""
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


@pytest.mark.parametrize("seedable", [False, True])
@pytest.mark.parametrize("name", MAKES)
@settings(max_examples=12)
@given(epoch=st.integers(0, 2), place=st.integers(0, 5), ranks=st.integers(1, 3))
def test_a_resumed_run_continues_the_stream(on_ranks, name, seedable, epoch, place, ranks):
    def work(runtime):
        one, other = (make(name, runtime, use_seedable_sampler=seedable) for _ in range(2))
        for _ in range(epoch):
            lists(one)
        seen, states = [], []
        for batch in one:
            seen.append(batch.tolist())
            states.append(travelled(one.state_dict()))
        step = place % len(seen)
        other.load_state_dict(states[step])
        assert other.state_dict()["batches"] == step + 1
        return lists(other) == seen[step + 1 :], other.iteration == one.iteration

    assert on_ranks(ranks, work) == [(True, True)] * ranks


@pytest.mark.parametrize("name", ["own generator", "sequential"])
def test_later_epochs_are_those_of_one_run(runtime, name):
    one, other = make(name, runtime()), make(name, runtime())
    epochs = [lists(one) for _ in range(3)]
    one = make(name, runtime())
    lists(one)
    passing = iter(one)
    next(passing)
    other.load_state_dict(one.state_dict())
    assert [lists(other), lists(other)] == [epochs[1][1:], epochs[2]]


def test_the_place_is_kept_when_a_pass_was_broken_off(runtime):
    loader = make("sequential", runtime())
    for step, _ in enumerate(loader):
        if step == 2:
            break
    state = loader.state_dict()
    assert (state["epoch"], state["batches"]) == (0, 3)
    assert lists(loader)[0] == [0, 1], "in the same run a new pass begins at the start"


def test_between_epochs_the_place_is_the_start_of_the_next(runtime):
    loader = make("shuffled", runtime())
    lists(loader)
    state = loader.state_dict()
    assert (state["epoch"], state["batches"], state["seeds"]["order"]) == (1, 0, None)


def test_a_skip_after_resuming_counts_from_the_start_of_the_epoch(runtime):
    one = make("shuffled", runtime())
    whole = []
    for step, batch in enumerate(one):
        whole.append(batch.tolist())
        if step == 1:
            state = one.state_dict()
    other = make("shuffled", runtime())
    other.load_state_dict(state)
    assert lists(skip_first_batches(other, 2)) == whole[2:]
    assert (other.iteration, other.state_dict()["batches"]) == (1, 0)


def test_saving_in_a_skipped_epoch_saves_the_place_in_the_whole_one(runtime):
    loader = make("sequential", runtime())
    for _ in skip_first_batches(loader, 3):
        assert loader.state_dict()["batches"] == 4
        break


def test_choosing_another_epoch_starts_it_from_the_beginning(runtime):
    one, other = make("sequential", runtime()), make("sequential", runtime())
    next(iter(one))
    other.load_state_dict(one.state_dict())
    other.set_epoch(3)
    assert (len(lists(other)), other.iteration) == (6, 4)


def test_a_place_at_the_very_end_leaves_nothing_to_read(runtime):
    one, other = make("sequential", runtime()), make("sequential", runtime())
    for _ in one:
        state = one.state_dict()
    other.load_state_dict(state)
    assert (lists(other), other.iteration, len(lists(other))) == ([], 1, 6)


def test_a_state_of_the_future_is_refused(runtime):
    with pytest.raises(ValueError, match="version 9"):
        make("sequential", runtime()).load_state_dict({"version": 9})


def test_between_epochs_the_generator_of_the_user_is_remembered(runtime):
    one, other = make("own generator", runtime()), make("own generator", runtime())
    lists(one)
    other.load_state_dict(travelled(one.state_dict()))
    assert lists(other) == lists(one)


class Count(IterableDataset):
    def __init__(self, size):
        self.size = size

    def __iter__(self):
        return iter(range(self.size))


class Batches(BatchSampler):
    """A batch sampler of other people."""


class Items(IterableDataset):
    """A stream of whole batches."""

    def __iter__(self):
        return (torch.arange(number, number + 1 + number % 3) for number in range(0, 41, 3))


DISPATCHED = {"put_on_device": True, "dispatch_batches": True}
RESHAPED = {
    "batch sampler": (lambda: DataLoader(range(41), batch_sampler=Batches(range(41), 2, False)), {}),
    "batch sampler, split": (
        lambda: DataLoader(range(41), batch_sampler=Batches(range(41), 12, False)),
        {"split_batches": True},
    ),
    "batch sampler as sampler": (
        lambda: DataLoader(torch.arange(41), batch_size=None, sampler=BatchSampler(range(41), 2, False)),
        {},
    ),
    "batches of any size": (lambda: DataLoader(range(41), batch_sampler=OfAnySize(41)), {}),
    "batches of any size, dispatched": (lambda: DataLoader(range(41), batch_sampler=OfAnySize(41)), DISPATCHED),
    "whole items": (lambda: DataLoader(torch.arange(41)[:, None], batch_size=None), {}),
    "whole items, dispatched": (lambda: DataLoader(torch.arange(41)[:, None], batch_size=None), DISPATCHED),
    "stream of whole items": (lambda: DataLoader(Items(), batch_size=None), {}),
    "stream of whole items, dispatched": (lambda: DataLoader(Items(), batch_size=None), DISPATCHED),
    "map": (lambda: DataLoader(range(41), batch_size=2, shuffle=True), {"use_seedable_sampler": True, "data_seed": 3}),
    "map, split": (
        lambda: DataLoader(range(41), batch_size=12, shuffle=True),
        {"use_seedable_sampler": True, "data_seed": 3, "split_batches": True},
    ),
    "stream": (lambda: DataLoader(Count(41), batch_size=2), {}),
    "dispatched": (lambda: DataLoader(Count(41), batch_size=2), {"put_on_device": True}),
    "map, dispatched": (lambda: DataLoader(range(41), batch_size=2), DISPATCHED),
}


@pytest.mark.filterwarnings("ignore:Resuming inside an epoch of a stream")
@pytest.mark.filterwarnings("ignore:Resuming inside an epoch whose order is made by OfAnySize")
@pytest.mark.parametrize("name", RESHAPED)
@settings(max_examples=10)
@given(st.integers(1, 4), st.integers(1, 4), st.integers(1, 3), st.integers(1, 3))
def test_another_number_of_processes_takes_over(on_ranks, name, before, after, steps, more):
    make_loader, options = RESHAPED[name]

    def run(runtime, state, stop):
        loader = prepare_data_loader(make_loader(), runtime=runtime, **options)
        if state is not None:
            loader.load_state_dict(state)
        seen = []
        for step, batch in enumerate(loader):
            seen += gather_for_metrics(runtime.collectives, runtime.gradient_state, batch).tolist()
            if step + 1 == stop:
                break
        return seen, travelled(loader.state_dict())

    whole, _ = on_ranks(1, lambda runtime: run(runtime, None, None))[0]
    first, state = on_ranks(before, lambda runtime: run(runtime, None, steps))[0]
    second, state = on_ranks(after, lambda runtime: run(runtime, state, more))[0]
    last, _ = on_ranks(before, lambda runtime: run(runtime, state, None))[0] if state["epoch"] == 0 else ([], None)
    assert first + second + last == whole


def test_a_place_inside_of_a_foreign_batch_is_refused(on_ranks):
    def save(runtime):
        user = DataLoader(range(12), batch_sampler=Batches(range(12), 3, False))
        loader = prepare_data_loader(user, runtime=runtime)
        next(iter(loader))
        return loader.state_dict()

    def resume(runtime):
        user = DataLoader(range(12), batch_sampler=Batches(range(12), 4, False))
        loader = prepare_data_loader(user, runtime=runtime)
        loader.load_state_dict(saved)
        return list(loader)

    saved = on_ranks(2, save)[0]
    with pytest.raises(ValueError, match="6 is not a multiple of 4"):
        on_ranks(2, resume)


class Shuffling(Count):
    """A stream that is shuffled by a generator, which shares of it seed with the epoch."""

    def __init__(self, size):
        super().__init__(size)
        self.generator = torch.Generator()

    def __iter__(self):
        return iter(torch.randperm(self.size, generator=self.generator).tolist())


SEEDED = {"use_seedable_sampler": True, "data_seed": 3}
SAME_STEPS = {
    "map": (lambda size, share: DataLoader(range(size), batch_size=share, shuffle=True), SEEDED),
    "map, dispatched": (
        lambda size, share: DataLoader(range(size), batch_size=share, shuffle=True),
        SEEDED | DISPATCHED,
    ),
    "stream": (lambda size, share: DataLoader(Count(size), batch_size=share), {}),
    "stream with a generator": (lambda size, share: DataLoader(Shuffling(size), batch_size=share), {}),
    "stream, dispatched": (lambda size, share: DataLoader(Count(size), batch_size=share), DISPATCHED),
}


@pytest.mark.filterwarnings("ignore:Resuming inside an epoch of a stream")
@pytest.mark.parametrize("name", SAME_STEPS)
@settings(max_examples=8)
@given(st.integers(61, 80), st.permutations([2, 3, 4]), st.integers(1, 3))
def test_steps_of_the_same_size_are_the_same_with_what_is_repeated(on_ranks, name, size, ranks, place):
    """Also after a step of another size in between."""
    make_loader, options = SAME_STEPS[name]

    def run(runtime, state, stop, step):
        user = make_loader(size, step // runtime.topology.world_size)
        loader = prepare_data_loader(user, runtime=runtime, **options)
        if state is not None:
            loader.load_state_dict(state)
        steps = []
        for batch in loader:
            steps.append(batch.tolist())
            if len(steps) == stop:
                break
        return steps, travelled(loader.state_dict())

    def together(of_ranks):
        return [
            [index for part in parts for index in part] for parts in zip(*(steps for steps, _ in of_ranks), strict=True)
        ]

    before, between, after = ranks
    whole = together(on_ranks(after, lambda runtime: run(runtime, None, None, 12)))
    first = on_ranks(before, lambda runtime: run(runtime, None, place, 12))
    second = on_ranks(between, lambda runtime: run(runtime, first[0][1], 1, 24 if "dispatched" not in name else 12))
    third = on_ranks(after, lambda runtime: run(runtime, second[0][1], None, 12))
    done = together(first) + together(second)
    assert together(third) == whole[sum(map(len, done)) // 12 :]
    samples = [index for step in whole for index in step]
    assert [index for step in done for index in step][:size] == samples[: min(size, sum(map(len, done)))]
