from __future__ import annotations

import random

import numpy as np
import pytest
import torch

from accelerate.config.enums import RNGType
from accelerate.state import PartialState
from accelerate.utils.random import set_seed, synchronize_rng_state, synchronize_rng_states


@pytest.fixture(autouse=True)
def _generators_are_put_back():
    before = random.getstate(), np.random.get_state(), torch.get_rng_state()
    yield
    random.setstate(before[0])
    np.random.set_state(before[1])
    torch.set_rng_state(before[2])
    torch.use_deterministic_algorithms(False)


def draw():
    return random.random(), float(np.random.rand()), float(torch.rand(()))


def test_a_seed_fixes_every_generator_without_starting_a_state():
    set_seed(5)
    first = draw()
    set_seed(5)
    assert draw() == first
    set_seed(6)
    assert all(one != other for one, other in zip(draw(), first, strict=True))
    assert PartialState._shared_state == {}


def test_a_seed_per_process_adds_its_index():
    PartialState()
    PartialState._shared_state["process_index"] = 2
    set_seed(5, device_specific=True)
    second = draw()
    set_seed(7)
    assert draw() == second


def test_a_seed_per_process_needs_to_know_which_it_is():
    with pytest.raises(ValueError, match="device_specific") as refusal:
        set_seed(5, device_specific=True)
    assert all(part in str(refusal.value) for part in ("Given:", "Why not:", "Allowed:", "What to do:"))


def test_deterministic_algorithms_are_asked_for():
    set_seed(5)
    assert not torch.are_deterministic_algorithms_enabled()
    set_seed(5, deterministic=True)
    assert torch.are_deterministic_algorithms_enabled()


class FirstProcess:
    """What this process hears when the first one's streams were seeded with 11."""

    def broadcast(self, state, source=0):
        assert source == 0
        return torch.Generator().manual_seed(11).get_state()


@pytest.fixture
def _second_of_two():
    PartialState()
    PartialState._shared_state["_collectives"] = FirstProcess()


def first_numbers():
    return torch.rand(3, generator=torch.Generator().manual_seed(11)).tolist()


@pytest.mark.usefixtures("_second_of_two")
@pytest.mark.parametrize("kind", ["generator", RNGType.GENERATOR, None])
def test_a_generator_is_put_where_the_first_process_is(kind):
    generator = torch.Generator().manual_seed(3)
    before = torch.get_rng_state()
    synchronize_rng_state(kind, generator)
    assert torch.rand(3, generator=generator).tolist() == first_numbers()
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.usefixtures("_second_of_two")
def test_several_streams_at_once():
    generator = torch.Generator().manual_seed(3)
    synchronize_rng_states(["torch", RNGType.GENERATOR], generator)
    assert torch.rand(3).tolist() == torch.rand(3, generator=generator).tolist() == first_numbers()


def test_alone_nothing_changes():
    before = torch.get_rng_state()
    synchronize_rng_states(["torch"])
    assert torch.equal(torch.get_rng_state(), before)
