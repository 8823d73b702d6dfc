from __future__ import annotations

import copy
import gc
import pickle

import pytest

from accelerate.config.gradient_accumulation import GradientAccumulationPlugin
from accelerate.state.gradient import GradientState, Iteration


class Loader:
    """Yields as the library's loaders do, and is told what to say about the last batch."""

    def __init__(self, batches, remainder=-1):
        self.batches = batches
        self.remainder_of_last = remainder
        self.gradient_state = GradientState()

    def __iter__(self):
        state = self.gradient_state
        iteration = Iteration(self)
        state.enter(iteration)
        try:
            for index in range(self.batches):
                if index == self.batches - 1:
                    iteration.end_of_dataloader = True
                    iteration.remainder = self.remainder_of_last
                state.turn += 1
                iteration.turn = state.turn
                yield index
        finally:
            state.leave(iteration)


class OutsideLoader:
    end_of_dataloader = False
    remainder = -1


DEFAULTS = {
    "num_steps": 1,
    "adjust_scheduler": True,
    "sync_with_dataloader": True,
    "sync_each_batch": False,
    "scale_short_window": False,
}


@pytest.mark.parametrize(("name", "default"), DEFAULTS.items())
def test_settings_are_read_from_the_live_dictionary(name, default):
    state = GradientState()
    assert getattr(state, name) == default
    other = 7 if name == "num_steps" else not default
    state.plugin_kwargs[name] = other
    assert getattr(GradientState(), name) == other


def test_the_number_of_steps_may_be_left_open():
    state = GradientState()
    state.plugin_kwargs["num_steps"] = None
    assert state.num_steps == 1


def test_a_plugin_gives_the_settings_and_a_later_one_replaces_them():
    state = GradientState(GradientAccumulationPlugin(num_steps=3, sync_with_dataloader=False))
    assert (state.num_steps, state.sync_with_dataloader) == (3, False)
    assert state.plugin_kwargs.get("num_steps") == 3
    GradientState()
    assert state.num_steps == 3
    GradientState(GradientAccumulationPlugin(num_steps=4))
    assert (state.num_steps, state.sync_with_dataloader) == (4, True)


def test_what_is_not_said_about_the_schedule_takes_effect():
    assert GradientState(GradientAccumulationPlugin(num_steps=2)).adjust_scheduler is True
    assert GradientState(GradientAccumulationPlugin(num_steps=2, adjust_scheduler=False)).adjust_scheduler is False


def test_sync_gradients_is_assignable_in_both_spellings():
    state = GradientState()
    assert state.sync_gradients is True
    state._set_sync_gradients(False)
    assert GradientState().sync_gradients is False
    state.sync_gradients = True
    assert GradientState().sync_gradients is True


def test_xla_gradients_belong_to_one_window(monkeypatch):
    state = GradientState()
    assert state.is_xla_gradients_synced is False
    state.is_xla_gradients_synced = True
    assert GradientState().is_xla_gradients_synced is True
    state._set_sync_gradients(True)
    assert state.is_xla_gradients_synced is False
    monkeypatch.setenv("ACCELERATE_USE_FSDP", "true")
    assert state.is_xla_gradients_synced is True


def test_outside_every_loader_there_is_no_end_and_no_remainder():
    state = GradientState()
    assert (state.end_of_dataloader, state.remainder, state.active_dataloader) == (False, -1, None)
    assert not state.in_dataloader
    assert state.dataloader_references == [None]


def test_a_pass_tells_its_end_and_remainder_and_leaves_nothing():
    state, loader = GradientState(), Loader(3, remainder=2)
    seen = [(state.end_of_dataloader, state.remainder, state.active_dataloader is loader) for _ in loader]
    assert seen == [(False, -1, True), (False, -1, True), (True, 2, True)]
    assert not state.in_dataloader


def test_a_validation_loop_is_active_while_it_yields_and_then_gives_way():
    state, train, validation = GradientState(), Loader(2), Loader(1)
    seen = []
    for _ in train:
        seen.append((state.active_dataloader is train, state.end_of_dataloader))
        for _ in validation:
            seen.append((state.active_dataloader is validation, state.end_of_dataloader))
        seen.append((state.active_dataloader is train, state.end_of_dataloader))
    assert seen == [(True, False), (True, True), (True, False), (True, True), (True, True), (True, True)]


def test_an_early_break_releases_the_pass():
    state, loader = GradientState(), Loader(3)
    for _ in loader:
        break
    gc.collect()
    assert not state.in_dataloader
    assert state.dataloader_references == [None]


def test_of_two_passes_side_by_side_the_one_that_yielded_last_is_active():
    state, one, other = GradientState(), Loader(3), Loader(3)
    first, second = iter(one), iter(other)
    next(first), next(second)
    assert state.active_dataloader is other
    next(first)
    assert state.active_dataloader is one
    assert state.dataloader_references == [None, one, other]
    second.close()
    assert state.dataloader_references == [None, one]


def test_two_passes_over_one_loader_are_told_apart():
    state, loader = GradientState(), Loader(2)
    first, second = iter(loader), iter(loader)
    next(first), next(second), next(second)
    assert state.end_of_dataloader
    second.close()
    assert not state.end_of_dataloader


def driven(state, since):
    iteration = state.driving(since)
    return None if iteration is None else iteration.loader


def test_the_outermost_pass_that_yielded_drives_accumulation():
    state, train, validation = GradientState(), Loader(2), Loader(2)
    training = iter(train)
    next(training)
    mark = state.turn
    assert driven(state, 0) is train
    assert driven(state, mark) is None  # the same batch again
    looking = iter(validation)
    next(looking)
    assert driven(state, mark) is validation
    next(training), next(looking)
    assert driven(state, mark) is train  # although the other one yielded last
    assert driven(GradientState(), state.turn) is None


def test_the_loader_that_drove_before_goes_on_driving():
    state, auxiliary, train = GradientState(), Loader(4), Loader(2)
    helping = iter(auxiliary)  # begun before the training loop, and drawn from in each of its steps
    next(helping)
    for _ in train:
        mark = state.turn - 1
        next(helping)
        assert state.driving(mark, train).loader is train
        assert state.driving(mark, None).loader is auxiliary
        assert state.driving(mark, object()).loader is auxiliary


def test_a_pass_is_live_until_its_loop_ends():
    state, loader = GradientState(), Loader(1)
    for _ in loader:
        iteration = state.active
        assert state.is_live(iteration)
    assert not state.is_live(iteration)
    assert not state.is_live(Iteration(loader))


def test_a_pass_that_outlives_a_reset_ends_quietly():
    loader = Loader(2)
    running = iter(loader)
    next(running)
    GradientState._reset_state()
    running.close()
    assert GradientState._shared_state == {}
    assert not GradientState().in_dataloader


def test_loaders_of_other_people_register_themselves():
    state, outer, inner = GradientState(), OutsideLoader(), OutsideLoader()
    state._add_dataloader(outer)
    assert state.active_dataloader is outer
    state._add_dataloader(inner)
    inner.end_of_dataloader, inner.remainder = True, 4
    assert state.active_dataloader is inner
    assert (state.end_of_dataloader, state.remainder) == (True, 4)
    assert state.dataloader_references == [None, outer, inner]
    state._remove_dataloader(inner)
    assert (state.active_dataloader, state.end_of_dataloader) == (outer, False)
    state._remove_dataloader(inner)  # twice is once
    state._remove_dataloader(outer)
    assert not state.in_dataloader


def test_a_loader_that_is_gone_is_not_active():
    state, loader = GradientState(), OutsideLoader()
    state._add_dataloader(loader)
    del loader
    gc.collect()
    assert state.active_dataloader is None
    assert state.dataloader_references == [None]


def test_the_references_can_be_replaced():
    state, loader = GradientState(), OutsideLoader()
    state._add_dataloader(OutsideLoader())
    state.dataloader_references = [None, loader]
    assert state.active_dataloader is loader
    state.dataloader_references = [None]
    assert not state.in_dataloader


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda state: pickle.loads(pickle.dumps(state))])
def test_it_pickles_while_a_loader_runs(duplicate):
    state = GradientState(GradientAccumulationPlugin(num_steps=3))
    for _ in Loader(1):
        twin = duplicate(state)
        assert twin.in_dataloader
    assert twin.num_steps == 3
    assert twin.__dict__ is state.__dict__


def test_it_begins_in_a_new_process_with_what_it_carried():
    state = GradientState(GradientAccumulationPlugin(num_steps=3))
    state.sync_gradients = False
    carried = pickle.dumps(state)
    GradientState._reset_state()
    arrived = pickle.loads(carried)
    assert (arrived.num_steps, arrived.sync_gradients, arrived.in_dataloader) == (3, False, False)
    assert GradientState().num_steps == 3


def test_repr_shows_the_facts():
    GradientState(GradientAccumulationPlugin(num_steps=3))
    assert repr(GradientState()) == (
        "Sync Gradients: True\n"
        "At end of current dataloader: False\n"
        "Extra samples added: -1\n"
        "Gradient accumulation plugin: {'num_steps': 3}\n"
    )


def test_after_a_reset_it_says_so():
    state = GradientState()
    GradientState._reset_state()
    assert not state.initialized
    with pytest.raises(AttributeError, match="`GradientState`, which is empty"):
        _ = state.sync_gradients
