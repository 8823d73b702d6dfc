"""Layers that are stored in a smaller dtype than they are computed with."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from accelerate.big_modeling import attach_layerwise_casting_hooks
from accelerate.hooks import LayerwiseCastingHook, ModelHook, SequentialHook, add_hook_to_module

STORED, COMPUTED = torch.float8_e4m3fn, torch.float32


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(2, 2)
        self.norm = nn.LayerNorm(2)
        self.block = nn.Sequential(nn.Linear(2, 2), nn.Conv1d(2, 2, 1))
        self.norm_out = nn.Linear(2, 2)
        self.embed = nn.Embedding(2, 2)

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        return self.norm_out(self.block[0](self.norm(self.linear(value))))


@pytest.mark.parametrize(
    ("options", "stored"),
    [
        ({}, {"linear", "block.0", "block.1", "norm_out"}),
        ({"skip_modules_pattern": "norm"}, {"linear", "block.0", "block.1"}),
        ({"skip_modules_pattern": ["^block", "lin"]}, {"norm_out"}),
        ({"skip_modules_classes": (nn.Sequential,)}, {"linear", "norm_out"}),
        ({"skip_modules_classes": nn.Linear}, {"block.1"}),
    ],
    ids=lambda each: ",".join(sorted(each)) or "all",
)
def test_layers_are_stored_small(options: dict, stored: set[str]) -> None:
    net = Net()
    attach_layerwise_casting_hooks(net, STORED, COMPUTED, **options)
    small = {name for name, module in net.named_modules() if getattr(module, "weight", torch.ones(1)).dtype is STORED}
    assert small == stored
    assert net(torch.ones(1, 2)).dtype is COMPUTED
    assert {name for name, module in net.named_modules() if getattr(module, "weight", None) is not None} >= stored


def test_one_layer_and_a_hook_that_is_there_already() -> None:
    layer = nn.Linear(2, 2)
    attach_layerwise_casting_hooks(layer, torch.float16, COMPUTED, non_blocking=True)
    assert isinstance(layer._hf_hook, LayerwiseCastingHook)
    assert layer._hf_hook.non_blocking
    hooked = add_hook_to_module(nn.Linear(2, 2), ModelHook())
    attach_layerwise_casting_hooks(hooked, torch.float16, COMPUTED)
    assert isinstance(hooked._hf_hook, SequentialHook)
