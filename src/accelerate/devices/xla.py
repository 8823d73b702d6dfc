"""XLA devices (TPUs and whatever else PJRT drives): torch_xla numbers, synchronizes and seeds them in its own way."""

from __future__ import annotations

import importlib
from typing import Any

import torch

from accelerate.base.environ import parse_flag_from_env
from accelerate.devices.device import Device, RngState, is_importable
from accelerate.devices.specs import DeviceSpec


class XlaDevice(Device):
    """The XLA device of this process; torch_xla has started one process per device, so there is nothing to choose."""

    @classmethod
    def load_module(cls, spec: DeviceSpec) -> Any:
        """Return `torch_xla`, which stands in for a device module."""
        return importlib.import_module("torch_xla")

    @classmethod
    def is_present(cls, spec: DeviceSpec) -> bool:
        """Return whether torch_xla can be imported, and USE_TORCH_XLA doesn't say to leave it alone."""
        return parse_flag_from_env("USE_TORCH_XLA", default=True) and is_importable(spec)

    def resolve(self, index: int | None) -> torch.device:
        """Return the device that the runtime has given to this process."""
        return self.module.device()

    def activate(self) -> None:
        """Register the collective backend; the runtime has selected the device already."""
        importlib.import_module("torch_xla.distributed.xla_backend")

    def synchronize(self) -> None:
        """Run the graph that has been traced so far, and wait for it."""
        self.module.sync(wait=True)

    def empty_cache(self) -> None:
        """Do nothing: the runtime manages the memory of the device."""

    def seed(self, seed: int) -> None:
        """Seed the generator of the device."""
        self.module.manual_seed(seed)

    def generator_state(self) -> torch.Tensor:
        """Return the state of the generator, which is one number."""
        return torch.tensor(self._model().get_rng_state())

    def set_generator_state(self, state: torch.Tensor | int) -> None:
        """Restore the state of the generator, given as a tensor of one number or as the number."""
        self._model().set_rng_state(int(state))

    def rng_state(self) -> RngState:
        """Return the state of the generator."""
        return self.generator_state()

    def set_rng_state(self, state: Any) -> None:
        """Restore what :meth:`rng_state` returned, or the plain number that older checkpoints hold."""
        self.set_generator_state(state)

    def memory_info(self, index: int | None = None) -> tuple[int, int]:
        """Return the free and the total bytes of the device."""
        info = self._model().get_memory_info(self.torch_device)
        total = int(info["bytes_limit"])
        return total - int(info["bytes_used"]), total

    def supports_bf16(self) -> bool:
        """Return what the runtime says."""
        return bool(importlib.import_module("torch_xla.runtime").is_bf16_supported())

    def title(self) -> str:
        """Return the hardware behind XLA, such as "TPU"."""
        return str(importlib.import_module("torch_xla.runtime").device_type())

    def pci_address(self) -> None:
        """Return None: torch_xla doesn't tell."""

    def _model(self) -> Any:
        """Return the module with torch_xla's functions on devices."""
        return importlib.import_module("torch_xla.core.xla_model")
