"""What a configuration of quantization accepts, and what it makes of it."""

from __future__ import annotations

import pytest
import torch

from accelerate.config.enums import CustomDtype
from accelerate.config.quantization import BnbQuantizationConfig, TorchAoQuantizationConfig


@pytest.mark.parametrize(
    ("options", "compute", "rest", "target"),
    [
        ({"load_in_8bit": True}, torch.float16, torch.float16, torch.int8),
        ({"load_in_4bit": True}, torch.float16, torch.float16, CustomDtype.INT4),
        (
            {"load_in_4bit": True, "bnb_4bit_compute_dtype": "bf16", "torch_dtype": "fp32"},
            torch.bfloat16,
            torch.float32,
            CustomDtype.INT4,
        ),
        (
            {"load_in_4bit": True, "bnb_4bit_compute_dtype": torch.float32, "torch_dtype": "bfloat16"},
            torch.float32,
            torch.bfloat16,
            CustomDtype.INT4,
        ),
    ],
)
def test_dtypes_may_be_written_out(options, compute, rest, target) -> None:
    config = BnbQuantizationConfig(**options)
    assert (config.bnb_4bit_compute_dtype, config.torch_dtype, config.target_dtype) == (compute, rest, target)
    assert config.keep_in_fp32_modules == []
    assert config.skip_modules is None


@pytest.mark.parametrize(
    ("options", "error", "said"),
    [
        ({}, ValueError, "exactly one"),
        ({"load_in_8bit": True, "load_in_4bit": True}, ValueError, "exactly one"),
        ({"load_in_8bit": 1}, TypeError, "load_in_8bit=True"),
        ({"load_in_4bit": True, "bnb_4bit_quant_type": "nf5"}, ValueError, "'nf4'"),
        ({"load_in_4bit": True, "bnb_4bit_compute_dtype": "fp61"}, ValueError, "'fp16'"),
        ({"load_in_8bit": True, "torch_dtype": torch.int8}, ValueError, "torch_dtype"),
        ({"load_in_8bit": True, "skip_modules": "lm_head"}, TypeError, r"skip_modules=\['lm_head'\]"),
        ({"load_in_8bit": True, "keep_in_fp32_modules": [1]}, TypeError, "keep_in_fp32_modules"),
    ],
)
def test_what_makes_no_sense_is_refused(options, error, said) -> None:
    with pytest.raises(error, match=said):
        BnbQuantizationConfig(**options)


def test_torchao_leaves_other_weights_as_they_are() -> None:
    config = TorchAoQuantizationConfig()
    assert (config.quant_type, config.torch_dtype) == ("int8_weight_only", None)
    assert TorchAoQuantizationConfig(torch_dtype="bf16").torch_dtype is torch.bfloat16
    with pytest.raises(TypeError, match="skip_modules"):
        TorchAoQuantizationConfig(skip_modules="head")
