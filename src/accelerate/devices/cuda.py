"""CUDA and ROCm: presence without touching the driver, and the consumer cards that can't talk to each other."""

from __future__ import annotations

from typing import Any

import torch

from accelerate.base.environ import patch_environment
from accelerate.devices.device import Device
from accelerate.devices.nvidia import address_of, check_peer_to_peer
from accelerate.devices.specs import DeviceSpec


class CudaDevice(Device):
    """An NVIDIA or AMD GPU."""

    @classmethod
    def load_module(cls, spec: DeviceSpec) -> Any:
        """Return `torch.cuda`."""
        return torch.cuda

    @classmethod
    def is_present(cls, spec: DeviceSpec) -> bool:
        """Return whether there is a GPU, asking NVML so that the process can still fork afterwards."""
        with patch_environment(PYTORCH_NVML_BASED_CUDA_CHECK="1"):
            return torch.cuda.is_available()

    def pci_address(self) -> str | None:
        """Return the address on the PCI bus; older torch doesn't tell, and nvidia-smi is asked instead."""
        known = super().pci_address()
        return known or address_of(f"GPU-{self.module.get_device_properties(self.index or 0).uuid}")

    def check_multi_process(self) -> None:
        """Refuse several processes on cards whose driver breaks peer-to-peer, unless NCCL is told not to use it."""
        check_peer_to_peer([torch.cuda.get_device_name(index) for index in range(self.count())])
