"""Apple GPUs: there is one, without an index, and it has neither `set_device` nor a state per device."""

from __future__ import annotations

import platform
from typing import Any

import torch

from accelerate.devices.device import Device, RngState
from accelerate.devices.specs import DeviceSpec

#: The first macOS whose Metal computes in bfloat16.
BF16_MACOS = 14


class MpsDevice(Device):
    """The GPU of an Apple machine."""

    @classmethod
    def load_module(cls, spec: DeviceSpec) -> Any:
        """Return `torch.mps`."""
        return torch.mps

    @classmethod
    def is_present(cls, spec: DeviceSpec) -> bool:
        """Return whether torch can use Metal on this machine."""
        return torch.backends.mps.is_available()

    def resolve(self, index: int | None) -> torch.device:
        """Return the device, which has no number."""
        return torch.device("mps")

    def seed(self, seed: int) -> None:
        """Seed the generator of the GPU."""
        self.module.manual_seed(seed)

    def rng_state(self) -> RngState:
        """Return the state of the generator of the GPU."""
        return self.module.get_rng_state()

    def memory_info(self, index: int | None = None) -> tuple[int, int]:
        """Return the free and the total bytes of what Metal recommends to use of the memory shared with the CPU."""
        total = int(self.module.recommended_max_memory())
        return max(0, total - int(self.module.driver_allocated_memory())), total

    def supports_bf16(self) -> bool:
        """Return whether macOS is new enough."""
        return int(platform.mac_ver()[0].split(".")[0] or 0) >= BF16_MACOS

    def pci_address(self) -> None:
        """Return None: the GPU is part of the chip."""
