"""Windows of gradient accumulation, without processes or training."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
import torch
from torch import nn

from accelerate.comm.collectives import Alone
from accelerate.config.gradient_accumulation import GradientAccumulationPlugin
from accelerate.state.gradient import GradientState, Iteration
from accelerate.strategies.accumulation import Accumulate, Accumulation


class Loader:
    """Yields like a prepared loader."""

    def __init__(self, length):
        self.length = length

    def __iter__(self):
        state, iteration = GradientState(), Iteration(self)
        state.enter(iteration)
        try:
            for index in range(self.length):
                iteration.end_of_dataloader = index == self.length - 1
                state.turn += 1
                iteration.turn = state.turn
                yield index
        finally:
            state.leave(iteration)


def accumulation(**settings):
    state = GradientState(GradientAccumulationPlugin(**settings))
    return Accumulation(state, Alone(torch.device("cpu")), lambda model: nullcontext(), [])


def dues(counter, batches, *models, **kwargs):
    found = []
    for _ in batches:
        with Accumulate(counter, models, kwargs.get("num_items")):
            found.append(counter.gradient_state.sync_gradients)
    return found


@pytest.mark.parametrize(
    ("steps", "length", "expected"),
    [
        (1, 3, [True, True, True]),
        (2, 4, [False, True, False, True]),
        (3, 5, [False, False, True, False, True]),
        (5, 2, [False, True]),
    ],
)
def test_updates_are_due_every_nth_micro_batch_and_at_the_end(steps, length, expected):
    assert dues(accumulation(num_steps=steps), Loader(length)) == expected


def test_the_end_counts_for_nothing_when_it_is_switched_off():
    counter = accumulation(num_steps=2, sync_with_dataloader=False)
    loader = Loader(3)
    assert dues(counter, loader) == [False, True, False]
    assert dues(counter, loader) == [True, False, True]


def test_a_window_counts_from_the_start_of_each_epoch():
    counter, loader = accumulation(num_steps=2), Loader(3)
    assert [dues(counter, loader) for _ in range(2)] == [[False, True, True]] * 2


def test_a_loop_without_a_loader_counts_alone():
    assert dues(accumulation(num_steps=2), range(5)) == [False, True, False, True, False]


def test_sets_of_models_count_their_own_micro_batches():
    counter = accumulation(num_steps=2)
    a, b = nn.Linear(1, 1), nn.Linear(1, 1)
    found = [(dues(counter, [0], a), dues(counter, [0], b)) for _ in Loader(4)]
    assert found == [([due], [due]) for due in (False, True, False, True)]


def test_a_restored_position_is_taken_up_by_the_first_window():
    counter = accumulation(num_steps=3)
    counter.step = 4
    assert dues(counter, range(3), nn.Linear(1, 1)) == [False, True, False]
    assert counter.step == 7


def test_two_loaders_side_by_side_are_driven_by_the_first():
    counter = accumulation(num_steps=2)
    long, short = Loader(4), Loader(3)
    assert dues(counter, zip(long, short, strict=False)) == [False, True, False]
    counter.forget()
    assert dues(counter, zip(short, long, strict=False)) == [False, True, True]


def test_an_outer_loader_does_not_end_the_windows_of_an_inner_one():
    counter, inner = accumulation(num_steps=2), Loader(4)
    assert [dues(counter, inner) for _ in Loader(3)] == [[False, True, False, True]] * 3


def test_micro_batches_made_from_one_batch_end_with_as_many_of_the_last():
    counter = accumulation(num_steps=4)
    found = [dues(counter, range(4)) for _ in Loader(3)]
    assert found == [[False, False, False, True]] * 3


def settled(counter, model, lengths):
    """Accumulate gradients of ones over `lengths` micro-batches as `backward` would; return them once settled."""
    for parameter in model.parameters():
        parameter.grad = None
    for num_items in lengths:
        with Accumulate(counter, (model,), num_items):
            counter.scaled(model.weight.sum()).backward()
            if counter.gradient_state.sync_gradients:
                counter.settle()
                counter.settle()
    return model.weight.grad.item()


@pytest.mark.parametrize(("scale_short_window", "expected"), [(False, 2 / 3), (True, 1.0)])
def test_a_short_window_is_scaled_by_its_real_length_when_asked(scale_short_window, expected):
    counter = accumulation(num_steps=3, scale_short_window=scale_short_window)
    model = nn.Linear(1, 1, bias=False)
    lengths = [None] * 2
    loader = iter(Loader(2))
    grads = settled(counter, model, (length for length, _ in zip(lengths, loader, strict=True)))
    assert grads == pytest.approx(expected)


def test_weighted_losses_are_divided_by_the_items_of_the_window():
    counter = accumulation(num_steps=3)
    assert settled(counter, nn.Linear(1, 1, bias=False), [1, torch.tensor(3), 2]) == pytest.approx(1.0)
    assert settled(counter, nn.Linear(1, 1, bias=False), [5, 5, 5]) == pytest.approx(1.0)


def test_a_window_weighted_in_part_is_refused():
    counter = accumulation(num_steps=3)
    model = nn.Linear(1, 1)
    dues(counter, [0], model, num_items=2)
    with pytest.raises(ValueError, match="for micro-batch 2 of a window"):
        dues(counter, [0], model)


def test_losses_outside_a_micro_batch_are_not_weighted():
    counter = accumulation(num_steps=4)
    dues(counter, [0], nn.Linear(1, 1), num_items=7)
    assert counter.scaled(torch.ones(())) == 0.25


def test_models_do_not_communicate_until_an_update_is_due():
    quiet = []

    class Silence:
        def __init__(self, model):
            self.model = model

        def __enter__(self):
            quiet.append(self.model)

        def __exit__(self, *error):
            quiet.remove(self.model)

    def during(sync_each_batch):
        state = GradientState(GradientAccumulationPlugin(num_steps=2, sync_each_batch=sync_each_batch))
        counter = Accumulation(state, Alone(torch.device("cpu")), Silence, [])
        found = []
        for _ in range(2):
            with Accumulate(counter, ("a", "b"), None):
                found.append(list(quiet))
        return found

    assert during(False) == [["a", "b"], []]
    assert during(True) == [[], []]
    assert quiet == []
