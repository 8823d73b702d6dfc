"""Budgets: what is free, what users allow, and even shares. The accelerators are fakes."""

from __future__ import annotations

import logging

import psutil
import pytest
import torch
from torch import nn

from accelerate.big_modeling import budget
from accelerate.big_modeling.budget import get_balanced_memory, get_max_memory
from accelerate.devices.specs import CPU, CUDA, MPS, DeviceSpec


class FakeDevice:
    """A kind of device of which some are there, with 1000 bytes free on the first, 2000 on the second…"""

    def __init__(self, spec: DeviceSpec, count: int, integrated: bool = False) -> None:
        self.spec = spec
        self.module = self
        self.number = count
        self.integrated = integrated

    def count(self) -> int:
        return self.number

    def free_memory(self, index: int | None = None) -> int:
        return 1000 * ((index or 0) + 1)

    def get_device_properties(self, index: int) -> object:
        return type("Properties", (), {"is_integrated": self.integrated})()


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch):
    """Return a function that says which accelerators there are."""
    monkeypatch.setattr(psutil, "virtual_memory", lambda: type("Memory", (), {"available": 5000, "total": 9000})())

    def have(spec: DeviceSpec, count: int = 1, integrated: bool = False) -> None:
        monkeypatch.setattr(budget, "default_device", lambda: FakeDevice(spec, count, integrated))

    have(CPU)
    return have


def layers() -> nn.Module:
    """Layers of 440, 608 (440 and 168 within) and 880 bytes, 1928 in all; 968 in half precision."""
    inner = nn.Sequential(nn.Linear(10, 10), nn.BatchNorm1d(10))
    return nn.Sequential(nn.Linear(10, 10), inner, nn.Linear(10, 20))


@pytest.mark.parametrize(
    ("there", "expected"),
    [
        ((CPU,), {"cpu": 5000}),
        ((CUDA, 2), {0: 1000, 1: 2000, "cpu": 5000}),
        ((CUDA, 1, True), {0: 1000}),
        ((MPS,), {"mps": 1000}),
    ],
    ids=["cpu", "two", "integrated", "apple"],
)
def test_what_is_free(machine, there: tuple, expected: dict) -> None:
    machine(*there)
    assert get_max_memory() == expected


def test_what_users_allow_is_put_in_order(machine) -> None:
    machine(CUDA, 3)
    allowed = get_max_memory({"disk": "1GB", "cpu": 5, 2: "1KiB", 0: "1KB", "mps": 3})
    assert list(allowed.items()) == [(0, 1000), (2, 1024), ("mps", 3), ("cpu", 5), ("disk", 10**9)]
    assert get_max_memory({}) == {}


def test_devices_that_are_not_there_are_named(machine, caplog: pytest.LogCaptureFixture) -> None:
    machine(CUDA, 1)
    with caplog.at_level(logging.WARNING):
        get_max_memory({0: 1, 1: 1})
    assert caplog.messages == ["max_memory has a budget for device 1, which this machine lacks; it has [0]."]


@pytest.mark.parametrize(
    ("device", "hint"), [("cuda:1", "write 1 for 'cuda:1'"), ("dsk", "Did you mean 'disk'"), (1.5, "Choose one of")]
)
def test_what_is_no_device_is_refused(machine, device: object, hint: str) -> None:
    with pytest.raises(ValueError, match=hint):
        get_max_memory({device: 10})


@pytest.mark.parametrize(
    ("given", "options", "expected"),
    [
        (None, {}, {0: 1000, 1: 1244, 2: 3000}),
        (None, {"low_zero": True}, {0: 0, 1: 1566, 2: 3000}),
        (None, {"no_split_module_classes": ["Sequential"]}, {0: 1000, 1: 1402, 2: 3000}),
        (None, {"dtype": torch.float16}, {0: 624, 1: 624, 2: 3000}),
        ({0: 1000, 1: 1000}, {"low_zero": True}, {0: 928, 1: 1000}),
        ({0: 1000, 1: 1000}, {"dtype": torch.float16}, {0: 786, 1: 1000}),
        ({0: 1000, 1: 0, 2: 1000}, {"dtype": torch.float16}, {0: 786, 1: 0, 2: 1000}),
        ({1: 1000, 2: 1000}, {"low_zero": True}, {1: 928, 2: 1000}),
        ({0: 1000}, {"low_zero": True}, {0: 1000}),
        ({"cpu": 10}, {}, {"cpu": 10}),
    ],
    ids=str,
)
def test_even_shares(machine, given: dict | None, options: dict, expected: dict) -> None:
    machine(CUDA, 3)
    shares = get_balanced_memory(layers(), given, **options)
    assert {device: size for device, size in shares.items() if device != "cpu" or "cpu" in expected} == expected


def test_a_single_accelerator_keeps_a_tenth_free_unless_users_say_otherwise(machine) -> None:
    machine(CUDA, 1)
    assert get_balanced_memory(layers()) == {0: 900, "cpu": 5000}
