"""What this machine can do, asked of torch: which devices are there, and what they compute in.

The functions keep the names under which Accelerate 1.15 published them. Those that are cached answer for the life of
the process; `cache_clear` makes them look again.
"""

from __future__ import annotations

import importlib
from functools import lru_cache

import torch

from accelerate.base import packages
from accelerate.base.messages import message
from accelerate.base.versions import is_torch_version
from accelerate.devices import specs
from accelerate.devices.device import build_device, device_class
from accelerate.devices.nvidia import check_cuda_p2p_ib_support, get_driver_version, get_gpu_info
from accelerate.devices.select import default_device, default_spec
from accelerate.devices.specs import DeviceSpec

__all__ = [
    "check_cuda_fp8_capability",
    "check_cuda_p2p_ib_support",
    "get_current_device_type",
    "get_driver_version",
    "get_gpu_info",
    "is_bf16_available",
    "is_cuda_available",
    "is_fp8_available",
    "is_fp16_available",
    "is_habana_gaudi1",
    "is_hpu_available",
    "is_mlu_available",
    "is_mps_available",
    "is_musa_available",
    "is_neuron_available",
    "is_npu_available",
    "is_rocm_available",
    "is_sdaa_available",
    "is_torch_distributed_available",
    "is_torch_xla_available",
    "is_transformer_engine_mxfp8_available",
    "is_xccl_available",
    "is_xpu_available",
]

#: Compute capability from which NVIDIA GPUs multiply in fp8, and in mxfp8.
FP8_CAPABILITY = (8, 9)
MXFP8_CAPABILITY = (10, 0)


def is_torch_distributed_available() -> bool:
    """Return whether this build of torch has torch.distributed."""
    return torch.distributed.is_available()


def is_xccl_available() -> bool:
    """Return whether this build of torch has the collective backend for Intel GPUs."""
    return torch.distributed.is_available() and torch.distributed.is_backend_available("xccl")


def is_rocm_available() -> bool:
    """Return whether torch was built for AMD GPUs and sees one."""
    return torch.version.hip is not None and is_cuda_available()


def is_cuda_available() -> bool:
    """Return whether torch sees a CUDA or ROCm GPU; the process can still fork afterwards."""
    return _is_present(specs.CUDA)


def is_mps_available(min_version: str = "1.12") -> bool:
    """Return whether torch, in `min_version` or later, can use an Apple GPU."""
    return is_torch_version(">=", min_version) and _is_present(specs.MPS)


@lru_cache
def is_mlu_available(check_device: bool = False) -> bool:
    """Return whether there is a Cambricon MLU; `check_device` counts them too."""
    return _is_present(specs.MLU, check_device)


@lru_cache
def is_musa_available(check_device: bool = False) -> bool:
    """Return whether there is a Moore Threads GPU; `check_device` counts them too."""
    return _is_present(specs.MUSA, check_device)


@lru_cache
def is_npu_available(check_device: bool = False) -> bool:
    """Return whether there is an Ascend NPU; `check_device` counts them too."""
    return _is_present(specs.NPU, check_device)


@lru_cache
def is_sdaa_available(check_device: bool = False) -> bool:
    """Return whether there is a Tecorigin SDAA; `check_device` counts them too."""
    return _is_present(specs.SDAA, check_device)


@lru_cache
def is_hpu_available(init_hccl: bool = False) -> bool:
    """Return whether there is an Intel Gaudi; `init_hccl` registers its collective backend too."""
    if not _is_present(specs.HPU):
        return False
    if init_hccl:
        importlib.import_module("habana_frameworks.torch.distributed.hccl")
    return True


@lru_cache
def is_xpu_available(check_device: bool = False) -> bool:
    """Return whether there is an Intel GPU; `check_device` counts them too."""
    return _is_present(specs.XPU, check_device)


@lru_cache
def is_neuron_available(check_device: bool = False) -> bool:
    """Return whether there is an AWS Trainium under its native backend; `check_device` counts them too."""
    return _is_present(specs.NEURON, check_device)


@lru_cache
def is_torch_xla_available(check_is_tpu: bool = False, check_is_gpu: bool = False) -> bool:
    """Return whether torch_xla can be imported and is wanted (USE_TORCH_XLA), and, if asked, what it drives.

    Raises:
        ValueError: both kinds of hardware were asked for.
    """
    if check_is_tpu and check_is_gpu:
        raise ValueError(
            message(
                given="check_is_tpu=True and check_is_gpu=True",
                why="XLA drives one kind of hardware in a process",
                allowed="one of the two, or neither",
                do="ask in two calls",
            )
        )
    if not _is_present(specs.XLA):
        return False
    if not (check_is_tpu or check_is_gpu):
        return True
    hardware = importlib.import_module("torch_xla.runtime").device_type()
    return hardware in (("TPU",) if check_is_tpu else ("GPU", "CUDA"))


def is_habana_gaudi1() -> bool:
    """Return whether the Gaudi here is of the first generation, which has neither float16 nor fp8."""
    return is_hpu_available() and build_device(specs.HPU).title() == "GAUDI"


def is_bf16_available(ignore_tpu: bool = False) -> bool:
    """Return whether the default device computes in bfloat16; `ignore_tpu` answers no for XLA devices."""
    if is_torch_xla_available():
        return not ignore_tpu
    return default_device().supports_bf16()


def is_fp16_available() -> bool:
    """Return whether the default device computes in float16."""
    return is_torch_xla_available() or default_device().supports_fp16()


def is_fp8_available() -> bool:
    """Return whether a library that trains in fp8 is installed."""
    return (
        packages.is_msamp_available() or packages.is_transformer_engine_available() or packages.is_torchao_available()
    )


def is_transformer_engine_mxfp8_available() -> bool:
    """Return whether Transformer Engine is installed on a GPU that multiplies in mxfp8."""
    return packages.is_transformer_engine_available() and _has_capability(MXFP8_CAPABILITY)


@lru_cache
def check_cuda_fp8_capability() -> bool:
    """Return whether the current CUDA device multiplies in fp8 (compute capability 8.9 or later)."""
    return _has_capability(FP8_CAPABILITY)


def get_current_device_type() -> tuple[str, str]:
    """Return the torch type of the default device, and the `DistributedType` value of a run on several of them."""
    spec = default_spec()
    return spec.name, spec.label


def _is_present(spec: DeviceSpec, check_device: bool = False) -> bool:
    """Return whether a device of kind `spec` is there, and can be counted if asked."""
    kind = device_class(spec)
    if not kind.is_present(spec):
        return False
    if not check_device:
        return True
    try:
        return kind.load_module(spec).device_count() > 0
    except RuntimeError:  # the driver is there, the hardware is not
        return False


def _has_capability(wanted: tuple[int, int]) -> bool:
    """Return whether the current CUDA device has at least compute capability `wanted`."""
    return is_cuda_available() and torch.version.hip is None and torch.cuda.get_device_capability() >= wanted
