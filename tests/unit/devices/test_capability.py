"""The published questions about this machine, answered from the table of hardware."""

from __future__ import annotations

import pytest
import torch

from accelerate.base import packages
from accelerate.devices import capability
from accelerate.devices.cuda import CudaDevice
from accelerate.devices.device import Device

CACHED = [
    "is_mlu_available",
    "is_musa_available",
    "is_npu_available",
    "is_sdaa_available",
    "is_hpu_available",
    "is_xpu_available",
    "is_neuron_available",
    "is_torch_xla_available",
    "check_cuda_fp8_capability",
]


@pytest.fixture(autouse=True)
def fresh():
    """Let cached answers neither come from another test nor go to one."""
    for name in CACHED:
        getattr(capability, name).cache_clear()
    yield
    for name in CACHED:
        getattr(capability, name).cache_clear()


@pytest.fixture
def gpu(machine, monkeypatch: pytest.MonkeyPatch):
    """Return a function that puts a CUDA device of some compute capability into the machine."""

    def add(capability_: tuple[int, int]) -> None:
        monkeypatch.setattr(CudaDevice, "is_present", classmethod(lambda cls, spec: True))
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: capability_)
        monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda: capability_ >= (8, 0))

    return add


def test_a_machine_without_accelerators_has_none(machine) -> None:
    names = [*CACHED, "is_cuda_available", "is_mps_available", "is_rocm_available", "is_habana_gaudi1"]
    assert [name for name in names if getattr(capability, name)()] == []
    assert capability.get_current_device_type() == ("cpu", "MULTI_CPU")


def test_the_cpu_computes_in_both_halves(machine) -> None:
    assert capability.is_bf16_available()
    assert capability.is_fp16_available()


def test_what_is_present_is_available(machine) -> None:
    machine.add("xpu")
    assert capability.is_xpu_available()
    assert capability.is_xpu_available(check_device=True)
    assert not capability.is_cuda_available()
    assert capability.get_current_device_type() == ("xpu", "MULTI_XPU")


def test_a_driver_without_hardware_is_seen_when_devices_are_counted(machine) -> None:
    backend = machine.add("xpu")

    def count() -> int:
        raise RuntimeError("no device")

    backend.device_count = count
    assert capability.is_xpu_available()
    assert not capability.is_xpu_available(check_device=True)


def test_answers_are_kept_until_they_are_cleared(machine) -> None:
    backend = machine.add("xpu")
    assert capability.is_xpu_available()
    backend.available = False
    assert capability.is_xpu_available()
    capability.is_xpu_available.cache_clear()
    assert not capability.is_xpu_available()


def test_mps_wants_a_torch_that_is_new_enough(machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    assert capability.is_mps_available()
    assert not capability.is_mps_available(min_version="99.0")


@pytest.mark.parametrize(
    ("hardware", "tpu", "gpu", "expected"),
    [
        ("TPU", False, False, True),
        ("TPU", True, False, True),
        ("TPU", False, True, False),
        ("CUDA", False, True, True),
        ("CUDA", True, False, False),
        ("NEURON", True, False, False),
    ],
)
def test_xla_says_what_it_drives(machine, install, hardware: str, tpu: bool, gpu: bool, expected: bool) -> None:
    install("torch_xla")
    install("torch_xla.runtime", device_type=lambda: hardware)
    assert capability.is_torch_xla_available(check_is_tpu=tpu, check_is_gpu=gpu) is expected


def test_xla_drives_one_kind_of_hardware() -> None:
    with pytest.raises(ValueError, match="check_is_tpu=True and check_is_gpu=True"):
        capability.is_torch_xla_available(check_is_tpu=True, check_is_gpu=True)


@pytest.mark.parametrize(("ignore", "expected"), [(False, True), (True, False)])
def test_bf16_on_xla_can_be_left_out(machine, install, ignore: bool, expected: bool) -> None:
    install("torch_xla")
    assert capability.is_bf16_available(ignore_tpu=ignore) is expected
    assert capability.is_fp16_available()


@pytest.mark.parametrize(
    ("generation", "first", "fp16"), [("GAUDI", True, False), ("GAUDI2", False, True), ("GAUDI3", False, True)]
)
def test_the_first_gaudi_is_known(
    machine, install, monkeypatch: pytest.MonkeyPatch, generation: str, first: bool, fp16: bool
) -> None:
    install("habana_frameworks.torch")
    hpu = install("habana_frameworks.torch.hpu", is_available=lambda: True, get_device_name=lambda: generation)
    monkeypatch.setattr(torch, "hpu", hpu, raising=False)
    assert capability.is_hpu_available()
    assert capability.is_habana_gaudi1() is first
    assert capability.is_fp16_available() is fp16


def test_the_collective_backend_of_gaudi_is_registered_when_asked(machine, install, monkeypatch) -> None:
    install("habana_frameworks.torch")
    monkeypatch.setattr(torch, "hpu", install("habana_frameworks.torch.hpu", is_available=lambda: True), raising=False)
    with pytest.raises(ModuleNotFoundError, match="habana_frameworks"):
        capability.is_hpu_available(init_hccl=True)
    install("habana_frameworks.torch.distributed.hccl")
    assert capability.is_hpu_available(init_hccl=True)


@pytest.mark.parametrize(
    ("compute", "fp8", "mxfp8", "bf16"),
    [
        ((7, 5), False, False, False),
        ((8, 9), True, False, True),
        ((9, 0), True, False, True),
        ((10, 0), True, True, True),
    ],
)
def test_what_a_gpu_computes_in(
    gpu, monkeypatch: pytest.MonkeyPatch, compute: tuple[int, int], fp8: bool, mxfp8: bool, bf16: bool
) -> None:
    gpu(compute)
    monkeypatch.setattr(packages, "is_transformer_engine_available", lambda: True)
    assert capability.check_cuda_fp8_capability() is fp8
    assert capability.is_transformer_engine_mxfp8_available() is mxfp8
    assert capability.is_bf16_available() is bf16


def test_mxfp8_needs_transformer_engine(gpu, monkeypatch: pytest.MonkeyPatch) -> None:
    gpu((10, 0))
    monkeypatch.setattr(packages, "is_transformer_engine_available", lambda: False)
    assert not capability.is_transformer_engine_mxfp8_available()


@pytest.mark.parametrize("library", ["msamp", "transformer_engine", "torchao"])
def test_any_library_for_fp8_will_do(monkeypatch: pytest.MonkeyPatch, library: str) -> None:
    for name in ("msamp", "transformer_engine", "torchao"):
        monkeypatch.setattr(packages, f"is_{name}_available", lambda: False)
    assert not capability.is_fp8_available()
    monkeypatch.setattr(packages, f"is_{library}_available", lambda: True)
    assert capability.is_fp8_available()


@pytest.mark.parametrize(("hip", "expected"), [("6.2", True), (None, False)])
def test_rocm_is_cuda_built_for_amd(gpu, monkeypatch: pytest.MonkeyPatch, hip: str | None, expected: bool) -> None:
    gpu((9, 4))
    monkeypatch.setattr(torch.version, "hip", hip)
    assert capability.is_rocm_available() is expected


def test_torch_answers_for_its_collectives(monkeypatch: pytest.MonkeyPatch) -> None:
    assert capability.is_torch_distributed_available()
    monkeypatch.setattr(torch.distributed, "is_backend_available", lambda name: name == "xccl")
    assert capability.is_xccl_available()


def test_the_base_class_answers_for_backends_that_follow_the_conventions() -> None:
    assert Device.supports_fp16(object())  # nothing is asked of the device
