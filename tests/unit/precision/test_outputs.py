from __future__ import annotations

import pickle
from collections import OrderedDict, defaultdict

import pytest
import torch

from accelerate.precision.outputs import ConvertOutputsToFp32, convert_outputs_to_fp32, to_fp32

HALF = torch.ones(2, dtype=torch.bfloat16)


@pytest.mark.parametrize(
    "dtype", [torch.float64, torch.float32, torch.int64, torch.bool, torch.complex64, torch.float8_e4m3fn]
)
def test_only_half_precision_is_converted(dtype):
    tensor = torch.ones(2).to(dtype)
    assert to_fp32(tensor) is tensor


@pytest.mark.parametrize(
    "nest",
    [
        lambda leaf: leaf,
        lambda leaf: (leaf, [leaf]),
        lambda leaf: {"a": {"b": leaf}},
        lambda leaf: OrderedDict(a=leaf),
        lambda leaf: defaultdict(list, a=leaf),
    ],
)
def test_containers_keep_their_kind(nest):
    converted, expected = to_fp32(nest(HALF)), nest(HALF.float())
    assert type(converted) is type(expected)
    assert repr(converted) == repr(expected)


def test_a_function_is_wrapped_visibly():
    def forward(input):
        """Twice."""
        return input * 2

    converting = convert_outputs_to_fp32(forward)
    assert converting(HALF).dtype is torch.float32
    assert converting.__doc__ == "Twice."
    assert isinstance(converting.__wrapped__, ConvertOutputsToFp32)
    assert converting.__wrapped__.model_forward is forward


def test_the_wrapper_alone_does_not_pickle():
    with pytest.raises(pickle.PicklingError, match="unwrap_model"):
        pickle.dumps(ConvertOutputsToFp32(len))
