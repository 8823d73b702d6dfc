"""The table of hardware: order, keys, rows from elsewhere, and that reading it needs no torch."""

from __future__ import annotations

import subprocess
import sys

import pytest

from accelerate.base.registry import Registry
from accelerate.config.enums import DistributedType, RNGType
from accelerate.devices import specs
from accelerate.devices.device import Device, device_class
from accelerate.devices.specs import SPECS, DeviceSpec, spec_for


def test_rows_stand_in_order_of_detection() -> None:
    names = [spec.name for spec in SPECS]
    assert names == ["xla", "mps", "mlu", "sdaa", "musa", "npu", "hpu", "cuda", "xpu", "neuron", "cpu"]


@pytest.mark.parametrize(
    ("name", "backend", "label", "visible", "rng_key"),
    [
        ("cuda", "nccl", "MULTI_GPU", "CUDA_VISIBLE_DEVICES", "torch_cuda_manual_seed"),
        ("xpu", "xccl", "MULTI_XPU", "ZE_AFFINITY_MASK", "torch_xpu_manual_seed"),
        ("npu", "hccl", "MULTI_NPU", "ASCEND_RT_VISIBLE_DEVICES", "torch_npu_manual_seed"),
        ("mlu", "cncl", "MULTI_MLU", "MLU_VISIBLE_DEVICES", "torch_mlu_manual_seed"),
        ("musa", "mccl", "MULTI_MUSA", "MUSA_VISIBLE_DEVICES", "torch_musa_manual_seed"),
        ("sdaa", "tccl", "MULTI_SDAA", "SDAA_VISIBLE_DEVICES", "torch_sdaa_manual_seed"),
        ("hpu", "hccl", "MULTI_HPU", "HABANA_VISIBLE_MODULES", "torch_hpu_manual_seed"),
        ("neuron", "neuron", "MULTI_NEURON", "NEURON_RT_VISIBLE_CORES", "torch_neuron_manual_seed"),
        ("cpu", "gloo", "MULTI_CPU", None, None),
        ("xla", "xla", "XLA", None, "xm_seed"),
    ],
)
def test_what_a_row_says(name: str, backend: str, label: str, visible: str | None, rng_key: str | None) -> None:
    spec = spec_for(name)
    assert (spec.backend, spec.label, spec.visible, spec.rng_key) == (backend, label, visible, rng_key)


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.name)
def test_every_row_has_a_label_and_a_class(spec: DeviceSpec) -> None:
    assert spec.label in [member.value for member in DistributedType]
    assert issubclass(device_class(spec), Device)


def test_every_device_stream_of_random_numbers_has_a_row() -> None:
    devices = {kind.value for kind in RNGType} - {"torch", "generator"}
    assert devices <= {spec.name for spec in SPECS}


def test_a_type_without_a_row_gets_a_generic_one() -> None:
    spec = spec_for("mtia")
    assert (spec.name, spec.label, spec.rng_key, spec.backend) == ("mtia", "MULTI_GPU", "torch_mtia_manual_seed", None)


def test_another_distribution_contributes_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    row = DeviceSpec(name="mtia", title="MTIA", label="MULTI_GPU", backend="gloo")
    rows: Registry[DeviceSpec] = Registry("devices")
    rows.register("mtia", row)
    monkeypatch.setattr(specs, "ROWS", rows)
    assert spec_for("mtia") is row


def test_reading_the_table_imports_no_torch() -> None:
    code = "import sys; from accelerate.devices.specs import SPECS; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0
