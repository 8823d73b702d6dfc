"""CUDA and ROCm: presence without touching the driver, and the consumer cards that can't talk to each other."""

from __future__ import annotations

from typing import Any

import torch

from accelerate.base.environ import patch_environment
from accelerate.devices.device import Device
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

    def check_multi_process(self) -> None:
        """Refuse several processes on cards whose driver breaks peer-to-peer, unless NCCL is told not to use it."""
        from accelerate.devices.peer import check_peer_to_peer

        check_peer_to_peer([torch.cuda.get_device_name(index) for index in range(self.count())])
