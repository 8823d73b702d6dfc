"""The processor and its memory, as a device: torch's own generator, nothing to activate, cache or wait for."""

from __future__ import annotations

from typing import Any

import torch

from accelerate.devices.device import Device, RngState
from accelerate.devices.specs import DeviceSpec


class CpuDevice(Device):
    """The only CPU there is; its random state is torch's, which checkpoints keep under a key of its own."""

    @classmethod
    def load_module(cls, spec: DeviceSpec) -> Any:
        """Return `torch.cpu`."""
        return torch.cpu

    @classmethod
    def is_present(cls, spec: DeviceSpec) -> bool:
        """Return True."""
        return True

    @property
    def storage(self) -> torch.device:
        """Return the CPU without a number; torch copies what is moved from `cpu` to `cpu:0`."""
        return torch.device("cpu")

    def count(self) -> int:
        """Return 1, whatever the number of sockets."""
        return 1

    def activate(self) -> None:
        """Do nothing: there is no other to switch from."""

    def synchronize(self) -> None:
        """Do nothing: operations have finished when they return."""

    def empty_cache(self) -> None:
        """Do nothing: torch keeps no cache of host memory."""

    def seed(self, seed: int) -> None:
        """Seed torch's default generator."""
        torch.default_generator.manual_seed(seed)

    def generator_state(self) -> torch.Tensor:
        """Return the state of torch's default generator."""
        return torch.get_rng_state()

    def set_generator_state(self, state: torch.Tensor) -> None:
        """Restore the state of torch's default generator."""
        torch.set_rng_state(state)

    def rng_state(self) -> RngState:
        """Return the state of torch's default generator."""
        return torch.get_rng_state()

    def memory_info(self, index: int | None = None) -> tuple[int, int]:
        """Return the available and the total bytes of main memory."""
        import psutil

        memory = psutil.virtual_memory()
        return memory.available, memory.total

    def title(self) -> str:
        """Return "CPU"."""
        return self.spec.title

    def pci_address(self) -> None:
        """Return None: a processor isn't on the PCI bus."""
