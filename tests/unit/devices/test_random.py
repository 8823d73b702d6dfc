"""Seeding, saving and restoring every random state of one process."""

from __future__ import annotations

import random
import types

import numpy as np
import pytest
import torch

from accelerate.devices.device import build_device
from accelerate.devices.random import NUMPY_KEY, PYTHON_KEY, TORCH_KEY, rng_state, seed_everything, set_rng_state
from accelerate.devices.specs import CPU, SPECS, XPU, spec_for


def draw() -> tuple[float, float, float]:
    """Draw a number from each generator that every process has."""
    return random.random(), float(np.random.rand()), float(torch.rand(()))


@pytest.fixture
def cpu():
    return build_device(CPU)


def test_the_same_seed_draws_the_same_numbers(cpu) -> None:
    seed_everything(3, device=cpu)
    first = draw()
    seed_everything(3, device=cpu)
    assert draw() == first
    seed_everything(4, device=cpu)
    assert draw() != first


def test_the_device_is_seeded_too() -> None:
    seeds: list[int] = []
    seed_everything(11, device=types.SimpleNamespace(seed=seeds.append))
    assert seeds == [11]


def test_deterministic_algorithms_are_required_only_when_asked_for(cpu) -> None:
    try:
        seed_everything(0, device=cpu)
        assert not torch.are_deterministic_algorithms_enabled()
        seed_everything(0, device=cpu, deterministic=True)
        assert torch.are_deterministic_algorithms_enabled()
    finally:
        torch.use_deterministic_algorithms(False)


def test_states_go_out_and_back_under_the_names_of_checkpoints(cpu) -> None:
    states = rng_state(cpu)
    assert sorted(states) == ["numpy_random_seed", "random_state", "torch_manual_seed"]
    first = draw()
    assert set_rng_state(states, device=cpu) == []
    assert draw() == first


def test_the_state_of_the_device_has_a_name_of_its_own(machine) -> None:
    backend = machine.add("xpu")
    device = build_device(XPU, 0)
    states = rng_state(device)
    assert [state.tolist() for state in states["torch_xpu_manual_seed"]] == [[0], [1]]
    backend.states = [torch.tensor([9], dtype=torch.uint8)] * 2
    set_rng_state(states, device=device)
    assert [state.tolist() for state in backend.states] == [[0], [1]]


@pytest.mark.parametrize("name", ["cuda", "xpu"])
def test_states_of_all_devices_of_a_kind_go_out_and_back(machine, name: str) -> None:
    backend, spec = machine.add(name), spec_for(name)
    device = build_device(spec, 0)
    states = rng_state(device)
    assert sorted(states) == sorted([NUMPY_KEY, PYTHON_KEY, TORCH_KEY, spec.rng_key])
    before = [state.clone() for state in states[spec.rng_key]]
    backend.states = [torch.tensor([9], dtype=torch.uint8)] * len(before)
    assert set_rng_state(states, device=device) == []
    assert all(map(torch.equal, backend.states, before))


def test_checkpoints_know_the_states_of_every_kind_of_device_by_a_name() -> None:
    named = ("mps", "mlu", "sdaa", "musa", "npu", "hpu", "cuda", "xpu", "neuron")
    expected = {name: f"torch_{name}_manual_seed" for name in named}
    assert {spec.name: spec.rng_key for spec in SPECS} == {**expected, "xla": "xm_seed", "cpu": None}


def test_what_is_missing_is_told(machine, cpu) -> None:
    machine.add("xpu")
    assert set_rng_state(rng_state(cpu), device=build_device(XPU)) == ["torch_xpu_manual_seed"]


@pytest.mark.parametrize(
    ("key", "state"),
    [("random_state", (3, (1, 2), None)), ("numpy_random_seed", ("MT19937",)), ("torch_manual_seed", torch.zeros(3))],
)
def test_what_can_not_be_restored_is_named(cpu, key: str, state: object) -> None:
    with pytest.raises(ValueError, match=f"random state '{key}'"):
        set_rng_state({key: state}, device=cpu)


def test_states_for_other_devices_are_named(machine) -> None:
    machine.add("xpu", count=2)
    one = {"torch_xpu_manual_seed": [torch.zeros(1, dtype=torch.uint8)]}
    with pytest.raises(ValueError, match=r"random state 'torch_xpu_manual_seed'[\s\S]*1 random states"):
        set_rng_state(one, device=build_device(XPU))
