"""The one interface over every kind of device, and each odd kind's deviations."""

from __future__ import annotations

import sys
import types

import psutil
import pytest
import torch

from accelerate.devices.cpu import CpuDevice
from accelerate.devices.cuda import CudaDevice
from accelerate.devices.device import Device, build_device, device_for, is_importable
from accelerate.devices.mps import MpsDevice
from accelerate.devices.specs import CPU, CUDA, HPU, MPS, XLA, XPU, DeviceSpec, spec_for
from accelerate.devices.xla import XlaDevice


@pytest.mark.parametrize("name", ["xpu", "mtia", "privateuseone"], ids=["row", "no row", "out of tree"])
def test_a_backend_is_driven_through_its_module(machine, name: str) -> None:
    backend = machine.add(name)
    device = build_device(spec_for(name), 1)
    assert (device.torch_device, device.index, device.count()) == (torch.device(name, 1), 1, 2)
    device.activate()
    device.synchronize()
    device.empty_cache()
    device.seed(7)
    assert backend.calls == [("set_device", 1), ("synchronize", 1), ("empty_cache",), ("manual_seed_all", 7)]
    assert (device.free_memory(), device.total_memory(), device.free_memory(0)) == (11, 101, 10)


def test_a_device_without_an_index_is_whichever_is_current(machine) -> None:
    backend = machine.add("xpu")
    device = build_device(XPU)
    backend.set_device(1)
    device.activate()
    assert device.torch_device == torch.device("xpu")
    assert device.free_memory() == 11
    assert device.generator_state().tolist() == [1]
    assert backend.calls == [("set_device", 1)]


def test_random_states_of_every_visible_device_go_out_and_back(machine) -> None:
    backend = machine.add("xpu")
    device = build_device(XPU, 0)
    saved = device.rng_state()
    backend.states = [torch.tensor([9], dtype=torch.uint8)] * 2
    device.set_rng_state(saved)
    assert [state.tolist() for state in backend.states] == [[0], [1]]


def test_a_single_state_is_that_of_the_device(machine) -> None:
    backend = machine.add("xpu")
    build_device(XPU, 1).set_rng_state(torch.tensor([5], dtype=torch.uint8))
    assert [state.tolist() for state in backend.states] == [[0], [5]]


def test_states_of_another_number_of_devices_are_refused(machine) -> None:
    machine.add("xpu")
    with pytest.raises(ValueError, match="3 random states") as refused:
        build_device(XPU, 0).set_rng_state([torch.zeros(1, dtype=torch.uint8)] * 3)
    assert "sees 2 of them" in str(refused.value)


@pytest.mark.parametrize(("answer", "expected"), [(True, True), (False, False)])
def test_bf16_is_asked_of_the_backend(machine, answer: bool, expected: bool) -> None:
    backend = machine.add("xpu")
    assert build_device(XPU).supports_bf16()  # believed, as the backend doesn't say
    backend.is_bf16_supported = lambda: answer
    assert build_device(XPU).supports_bf16() is expected


def test_the_address_on_the_bus_is_spelt_as_sysfs_does(machine) -> None:
    backend = machine.add("xpu")
    assert build_device(XPU, 1).pci_address() is None
    places = [types.SimpleNamespace(pci_domain_id=0, pci_bus_id=59 + at, pci_device_id=0) for at in range(2)]
    backend.get_device_properties = places.__getitem__
    assert build_device(XPU, 1).pci_address() == "0000:3c:00.0"
    assert build_device(XPU).pci_address() == "0000:3b:00.0"


def test_the_cpu_is_a_device_too() -> None:
    device = build_device(CPU, 0)
    assert isinstance(device, CpuDevice)
    assert str(device.torch_device) == "cpu:0"
    assert (device.count(), device.title(), device.pci_address()) == (1, "CPU", None)
    assert 0 < device.free_memory() < device.total_memory() == psutil.virtual_memory().total
    assert device.supports_bf16()
    device.activate()
    device.synchronize()
    device.empty_cache()
    device.seed(3)
    saved, first = device.rng_state(), torch.rand(4)
    device.set_rng_state(saved)
    assert torch.equal(torch.rand(4), first)
    assert first.to(device.storage) is first


@pytest.mark.parametrize(("given", "expected"), [("cpu", "cpu"), ("cpu:0", "cpu:0"), (torch.device("cpu"), "cpu")])
def test_a_device_is_found_behind_a_torch_device(given, expected: str) -> None:
    assert str(device_for(given).torch_device) == expected


def test_cuda_is_looked_for_without_poisoning_a_fork(monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    seen = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: seen.append(os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"]))
    CudaDevice.is_present(CUDA)
    assert seen == ["1"]
    assert "PYTORCH_NVML_BASED_CUDA_CHECK" not in os.environ


class TestMps:
    """Apple's GPU, of which there is one."""

    @pytest.fixture
    def module(self, monkeypatch: pytest.MonkeyPatch) -> types.SimpleNamespace:
        calls: list[tuple] = []
        module = types.SimpleNamespace(
            calls=calls,
            device_count=lambda: 1,
            synchronize=lambda: calls.append(("synchronize",)),
            empty_cache=lambda: calls.append(("empty_cache",)),
            manual_seed=lambda seed: calls.append(("manual_seed", seed)),
            get_rng_state=lambda: torch.tensor([4], dtype=torch.uint8),
            set_rng_state=lambda state: calls.append(("set_rng_state", state.tolist())),
            recommended_max_memory=lambda: 1000,
            driver_allocated_memory=lambda: 400,
        )
        monkeypatch.setattr(torch, "mps", module)
        return module

    def test_it_has_no_number_and_no_current_device(self, module: types.SimpleNamespace) -> None:
        device = build_device(MPS, 0)
        device.activate()
        device.synchronize()
        device.empty_cache()
        device.seed(2)
        device.set_rng_state(device.rng_state())
        assert device.torch_device == torch.device("mps")
        assert module.calls == [("synchronize",), ("empty_cache",), ("manual_seed", 2), ("set_rng_state", [4])]

    def test_its_memory_is_what_metal_recommends(self, module: types.SimpleNamespace) -> None:
        assert build_device(MPS).memory_info() == (600, 1000)
        assert build_device(MPS).pci_address() is None

    @pytest.mark.parametrize(("version", "expected"), [("13.6.1", False), ("14.0", True), ("26.1", True), ("", False)])
    def test_bf16_needs_macos_14(
        self, module: types.SimpleNamespace, monkeypatch: pytest.MonkeyPatch, version: str, expected: bool
    ) -> None:
        monkeypatch.setattr("platform.mac_ver", lambda: (version, ("", "", ""), ""))
        assert build_device(MPS).supports_bf16() is expected

    def test_presence_is_asked_of_torch(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
        assert MpsDevice.is_present(MPS)


class TestHpu:
    """Intel Gaudi, with a fake of `habana_frameworks.torch`."""

    @pytest.fixture
    def hpu(self, install):
        calls: list[tuple] = []
        random = types.SimpleNamespace(
            manual_seed_all=lambda seed: calls.append(("seed", seed)),
            get_rng_state=lambda: torch.tensor([1], dtype=torch.uint8),
            set_rng_state=lambda state: calls.append(("restore", state.tolist())),
        )
        return install(
            "habana_frameworks.torch.hpu",
            calls=calls,
            random=random,
            is_available=lambda: True,
            device_count=lambda: 8,
            current_device=lambda: 0,
            synchronize=lambda: calls.append(("synchronize",)),
            mem_get_info=lambda: (3, 5),
            get_device_name=lambda: "GAUDI2",
        )

    def test_the_process_has_one_device_whatever_its_rank(self, hpu, install) -> None:
        install("habana_frameworks.torch.distributed.hccl")
        device = build_device(HPU, 5)
        device.activate()
        assert device.torch_device == torch.device("hpu", 0)
        assert build_device(HPU).torch_device == torch.device("hpu")
        assert device.memory_info(3) == (3, 5)

    def test_random_states_are_in_a_submodule(self, hpu) -> None:
        device = build_device(HPU)
        device.seed(1)
        device.set_rng_state(device.rng_state())
        device.set_rng_state(torch.tensor([8], dtype=torch.uint8))
        device.synchronize()
        device.empty_cache()
        assert hpu.calls == [("seed", 1), ("restore", [1]), ("restore", [8]), ("synchronize",)]

    @pytest.mark.parametrize(("name", "expected"), [("GAUDI", False), ("GAUDI2", True), ("GAUDI3", True)])
    def test_the_first_generation_has_no_fp16(self, hpu, name: str, expected: bool) -> None:
        hpu.get_device_name = lambda: name
        assert build_device(HPU).supports_fp16() is expected
        assert build_device(HPU).supports_bf16()

    def test_it_is_absent_without_its_package(self) -> None:
        assert not Device.is_present(HPU)


class TestXla:
    """XLA devices, with a fake of `torch_xla`."""

    @pytest.fixture
    def torch_xla(self, install):
        calls: list[tuple] = []
        module = install(
            "torch_xla",
            calls=calls,
            device=lambda: torch.device("xla", 0),
            device_count=lambda: 4,
            sync=lambda wait: calls.append(("sync", wait)),
            manual_seed=lambda seed: calls.append(("seed", seed)),
        )
        install(
            "torch_xla.core.xla_model",
            get_rng_state=lambda: 77,
            set_rng_state=lambda seed: calls.append(("restore", seed)),
            get_memory_info=lambda device: {"bytes_used": 40, "bytes_limit": 100},
        )
        install("torch_xla.runtime", is_bf16_supported=lambda: True, device_type=lambda: "TPU")
        return module

    def test_the_runtime_has_given_the_device(self, torch_xla, install) -> None:
        install("torch_xla.distributed.xla_backend")
        device = build_device(XLA, 3)
        device.activate()
        device.synchronize()
        device.empty_cache()
        assert device.torch_device == torch.device("xla", 0)
        assert torch_xla.calls == [("sync", True)]
        assert (device.count(), device.title(), device.memory_info()) == (4, "TPU", (60, 100))
        assert device.supports_bf16()
        assert device.pci_address() is None

    def test_its_random_state_is_a_number(self, torch_xla) -> None:
        device = build_device(XLA)
        device.seed(5)
        device.set_rng_state(device.rng_state())
        device.set_rng_state(12)  # as older checkpoints hold it
        assert torch_xla.calls == [("seed", 5), ("restore", 77), ("restore", 12)]

    @pytest.mark.parametrize(("flag", "expected"), [(None, True), ("1", True), ("false", False)])
    def test_it_can_be_left_alone(
        self, torch_xla, monkeypatch: pytest.MonkeyPatch, flag: str | None, expected: bool
    ) -> None:
        monkeypatch.delenv("USE_TORCH_XLA", raising=False)
        if flag is not None:
            monkeypatch.setenv("USE_TORCH_XLA", flag)
        assert XlaDevice.is_present(XLA) is expected


def test_a_package_that_does_not_import_is_named_and_counts_as_absent(tmp_path, monkeypatch) -> None:
    (tmp_path / "broken_backend.py").write_text("raise ImportError('undefined symbol')")
    monkeypatch.syspath_prepend(str(tmp_path))
    spec = DeviceSpec(name="npu", title="Ascend NPU", label="MULTI_NPU", package="broken_backend")
    with pytest.warns(UserWarning, match="Ascend NPU is not used.*undefined symbol"):
        assert not is_importable(spec)
    assert "broken_backend" not in sys.modules


def test_a_package_that_is_not_installed_is_absent_without_a_word() -> None:
    assert not is_importable(DeviceSpec(name="npu", title="NPU", label="MULTI_NPU", package="no_such_backend"))
