from __future__ import annotations

import warnings

import pytest
import torch

from accelerate.config.autocast import AutocastKwargs
from accelerate.config.enums import PrecisionType
from accelerate.config.scaler import GradScalerKwargs
from accelerate.precision.base import Precision
from accelerate.precision.native import Bf16, Fp16, why_not
from accelerate.precision.select import PRECISIONS, select_precision
from accelerate.precision.spec import PrecisionSpec

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("name", "kind", "compute", "output", "needs_scaler"),
    [
        ("no", Precision, None, None, False),
        ("bf16", Bf16, torch.bfloat16, torch.float32, False),
        ("fp16", Fp16, torch.float16, torch.float32, True),
        (PrecisionType.BF16, Bf16, torch.bfloat16, torch.float32, False),
    ],
)
def test_a_name_gives_a_precision_and_its_facts(name, kind, compute, output, needs_scaler):
    precision = select_precision(name, CPU)
    assert type(precision) is kind
    assert precision.spec == PrecisionSpec(str(name), None, compute, compute, output, needs_scaler)
    assert (precision.scaler is not None) is needs_scaler


def test_a_device_of_ours_is_as_good_as_one_of_torch():
    class Handle:
        torch_device = CPU

    assert select_precision("bf16", Handle()).device == CPU


@pytest.mark.parametrize(
    ("name", "device", "words"),
    [
        ("bf17", "cpu", ["bf17", "no, bf16, fp16", "Did you mean 'bf16'?"]),
        ("fp8", "cpu", ["fp8", "none of the fp8 recipes", "torchao", "no, bf16, fp16"]),
        ("bf16", "meta", ["bf16", "'meta'", "unsupported autocast device_type"]),
        ("fp16", "meta", ["fp16", "'meta'", "unsupported autocast device_type"]),
    ],
)
def test_what_can_not_be_is_refused_in_four_parts(name, device, words):
    with pytest.raises(ValueError) as refusal:
        select_precision(name, torch.device(device))
    text = str(refusal.value)
    assert [part for part in ("Given:", "Why not:", "Allowed:", "What to do:") if part not in text] == []
    assert [word for word in words if word not in text] == []


def test_a_precision_of_another_package_is_found_by_name():
    class Fp8(Precision):
        spec = PrecisionSpec("fp8", recipe="mine")

    PRECISIONS.register("fp8", Fp8)
    try:
        assert type(select_precision("fp8", CPU)) is Fp8
    finally:
        del PRECISIONS._entries["fp8"]


def test_cpu_computes_in_both_16_bit_formats():
    assert [why_not(CPU, dtype) for dtype in (torch.float16, torch.bfloat16)] == [None, None]


@pytest.mark.parametrize(
    ("name", "options", "said"),
    [
        ("no", {"autocast_handler": AutocastKwargs()}, "AutocastKwargs"),
        ("no", {"keep_output_dtype": True}, "keep_output_dtype"),
        ("bf16", {"scaler_handler": GradScalerKwargs()}, "GradScalerKwargs"),
    ],
)
def test_an_option_without_effect_is_named_once(name, options, said):
    with pytest.warns(UserWarning, match=f"{said} has no effect with mixed_precision='{name}'"):
        select_precision(name, CPU, **options)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        select_precision(name, CPU, **options)


def test_the_settings_of_the_scaler_reach_it():
    precision = select_precision("fp16", CPU, scaler_handler=GradScalerKwargs(init_scale=8.0, growth_interval=3))
    assert (precision.scaler._init_scale, precision.scaler.get_growth_interval()) == (8.0, 3)
    assert not select_precision("fp16", CPU, scaler_handler=GradScalerKwargs(enabled=False)).scaler.is_enabled()
