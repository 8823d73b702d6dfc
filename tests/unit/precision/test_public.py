from __future__ import annotations

from contextlib import nullcontext

import pytest
import torch

from accelerate.config.autocast import AutocastKwargs
from accelerate.config.enums import DistributedType
from accelerate.precision.public import get_grad_scaler, get_mixed_precision_context_manager
from accelerate.state.accelerator_state import AcceleratorState


@pytest.mark.parametrize(
    ("native_amp", "kwargs", "dtype"),
    [
        (True, None, torch.bfloat16),
        (True, AutocastKwargs(enabled=False), torch.float32),
        (False, None, torch.float32),
    ],
)
def test_the_context_computes_in_the_precision_of_the_process(native_amp, kwargs, dtype):
    AcceleratorState(mixed_precision="bf16", cpu=True, _from_accelerator=True)
    context = get_mixed_precision_context_manager(native_amp, kwargs)
    assert isinstance(context, torch.autocast if native_amp else nullcontext)
    with context:
        assert torch.nn.Linear(2, 2)(torch.ones(1, 2)).dtype is dtype


def test_a_scaler_takes_its_settings():
    AcceleratorState(cpu=True, _from_accelerator=True)
    scaler = get_grad_scaler(DistributedType.NO, init_scale=8.0)
    assert type(scaler) is torch.amp.GradScaler
    assert (scaler._init_scale, scaler._device) == (8.0, "cpu")


def test_with_fsdp_the_scaler_asks_the_other_ranks():
    AcceleratorState(cpu=True, _from_accelerator=True)
    assert type(get_grad_scaler(DistributedType.FSDP)).__name__ == "ShardedGradScaler"
