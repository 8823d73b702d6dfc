"""Fakes of the surfaces that device libraries offer, so that decisions about them are tested without the hardware."""

from __future__ import annotations

import types
from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch

from accelerate.devices.specs import SPECS


class FakeBackend(types.ModuleType):
    """A device module with the functions that torch asks of every backend; it writes down what is called."""

    def __init__(self, name: str, count: int = 2, available: bool = True) -> None:
        super().__init__(name)
        self.count = count
        self.available = available
        self.calls: list[tuple] = []
        self.states = [torch.tensor([index], dtype=torch.uint8) for index in range(count)]
        self.current = 0

    def is_available(self) -> bool:
        return self.available

    def device_count(self) -> int:
        return self.count

    def set_device(self, index: int) -> None:
        self.calls.append(("set_device", index))
        self.current = index

    def current_device(self) -> int:
        return self.current

    def synchronize(self, *index: int) -> None:
        self.calls.append(("synchronize", *index))

    def empty_cache(self) -> None:
        self.calls.append(("empty_cache",))

    def manual_seed_all(self, seed: int) -> None:
        self.calls.append(("manual_seed_all", seed))

    def get_rng_state(self, *index: int) -> torch.Tensor:
        return self.states[index[0] if index else self.current]

    def set_rng_state(self, state: torch.Tensor, *index: int) -> None:
        self.states[index[0] if index else self.current] = state

    def mem_get_info(self, *index: int) -> tuple[int, int]:
        at = index[0] if index else self.current
        return 10 + at, 100 + at


@dataclass
class Machine:
    """A machine on which nothing but the CPU is present until a test adds something."""

    monkeypatch: pytest.MonkeyPatch

    def add(self, name: str, count: int = 2) -> FakeBackend:
        """Let `count` devices of a type that torch knows the name of be present, and return their module."""
        backend = FakeBackend(name, count)
        self.monkeypatch.setattr(torch, name, backend, raising=False)
        self.monkeypatch.setattr(
            torch, "get_device_module", lambda device=None: getattr(torch, torch.device(device).type)
        )
        self.monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda *_, **__: torch.device(name))
        self.monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
        return backend


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    """A machine with a CPU and nothing else, whatever the tests really run on."""
    for name in ("ACCELERATE_TORCH_DEVICE", "CUDA_VISIBLE_DEVICES", "ZE_AFFINITY_MASK"):
        monkeypatch.delenv(name, raising=False)
    for spec in SPECS:
        module = getattr(torch, spec.name, None)
        if module is not None and spec.name != "cpu":
            monkeypatch.setattr(module, "is_available", lambda: False, raising=False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda *_, **__: None)
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: False)
    return Machine(monkeypatch)


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> Callable[..., types.ModuleType]:
    """Return a function that makes a module importable, its parents included."""
    import importlib.machinery
    import sys

    def add(name: str, **attributes: object) -> types.ModuleType:
        module = types.ModuleType(name)
        module.__spec__ = importlib.machinery.ModuleSpec(name, loader=None, is_package=True)
        module.__path__ = []  # a package, so that submodules can be imported from it
        for key, value in attributes.items():
            setattr(module, key, value)
        monkeypatch.setitem(sys.modules, name, module)
        parent, _, leaf = name.rpartition(".")
        if parent:
            if parent not in sys.modules:
                add(parent)
            setattr(sys.modules[parent], leaf, module)
        return module

    return add
