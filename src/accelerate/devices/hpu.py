"""Intel Gaudi: a process owns one device, random states live in a submodule, and no cache can be emptied."""

from __future__ import annotations

import importlib
from typing import Any

import torch

from accelerate.devices.device import Device, RngState
from accelerate.devices.specs import DeviceSpec


class HpuDevice(Device):
    """A Gaudi processor."""

    @classmethod
    def load_module(cls, spec: DeviceSpec) -> Any:
        """Return `habana_frameworks.torch.hpu`, which is `torch.hpu`."""
        return importlib.import_module("habana_frameworks.torch.hpu")

    def resolve(self, index: int | None) -> torch.device:
        """Return the device that the process has acquired, whichever module that is on the machine."""
        return torch.device("hpu") if index is None else torch.device("hpu", self.module.current_device())

    def activate(self) -> None:
        """Register the collective backend; the device was acquired with the first question about it."""
        importlib.import_module("habana_frameworks.torch.distributed.hccl")

    def synchronize(self) -> None:
        """Wait until everything that was queued on the device is done."""
        self.module.synchronize()

    def empty_cache(self) -> None:
        """Do nothing: the bridge has no cache to give back."""

    def seed(self, seed: int) -> None:
        """Seed the generator of the device."""
        self.module.random.manual_seed_all(seed)

    def generator_state(self) -> torch.Tensor:
        """Return the random state of the device."""
        return self.module.random.get_rng_state()

    def set_generator_state(self, state: torch.Tensor) -> None:
        """Restore the random state of the device."""
        self.module.random.set_rng_state(state)

    def rng_state(self) -> RngState:
        """Return the random state of the device which this process owns."""
        return [self.generator_state()]

    def set_rng_state(self, state: RngState) -> None:
        """Restore what :meth:`rng_state` returned."""
        self.set_generator_state(state if isinstance(state, torch.Tensor) else state[0])

    def memory_info(self, index: int | None = None) -> tuple[int, int]:
        """Return the free and the total bytes of the device."""
        free, total = self.module.mem_get_info()
        return int(free), int(total)

    def supports_bf16(self) -> bool:
        """Return True: every Gaudi does."""
        return True

    def supports_fp16(self) -> bool:
        """Return whether this generation of Gaudi computes in float16; the first one, called plainly so, doesn't."""
        return self.title() != "GAUDI"

    def title(self) -> str:
        """Return the generation, such as "GAUDI2"."""
        return str(self.module.get_device_name())
