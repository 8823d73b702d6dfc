"""Whole models in turn on one device, and layers whose weights are stored in a smaller dtype."""

from __future__ import annotations

import pytest
import torch

from accelerate.hooks import CpuOffload, LayerwiseCastingHook, UserCpuOffloadHook, add_hook_to_module


class Moves(torch.nn.Module):
    """Writes down where it is sent, since there is no second device here."""

    def __init__(self) -> None:
        super().__init__()
        self.sent: list[str] = []

    def to(self, device):
        self.sent.append(str(device))
        return self

    def forward(self, value: torch.Tensor) -> str:
        return value.device.type


def test_a_model_comes_when_it_runs_and_goes_when_it_is_told() -> None:
    model, hook = Moves(), CpuOffload(execution_device="meta")
    add_hook_to_module(model, hook)
    user = UserCpuOffloadHook(model, hook)
    assert (user.model, user.hook) == (model, hook)
    assert model.sent == ["cpu"]
    assert model(torch.ones(1)) == "meta"
    assert model.sent == ["cpu", "meta"]
    user.offload()
    assert model.sent == ["cpu", "meta", "cpu"]
    user.remove()
    assert model(torch.ones(1)) == "cpu"
    assert "_hf_hook" not in model.__dict__


def test_the_next_model_sends_the_one_before_away() -> None:
    first, second = Moves(), Moves()
    hook = CpuOffload("meta")
    add_hook_to_module(first, hook)
    add_hook_to_module(second, CpuOffload("meta", prev_module_hook=UserCpuOffloadHook(first, hook)))
    first(torch.ones(1))
    second(torch.ones(1))
    assert first.sent == ["cpu", "meta", "cpu"]
    assert second.sent == ["cpu", "meta"]


def test_the_device_is_the_default_one() -> None:
    assert CpuOffload().execution_device == torch.device("cpu")


def test_weights_are_stored_small_and_computed_with_large() -> None:
    layer = torch.nn.Linear(4, 4)
    hook = LayerwiseCastingHook(torch.float8_e4m3fn, torch.float32, non_blocking=False)
    add_hook_to_module(layer, hook)
    assert layer.weight.dtype is torch.float8_e4m3fn
    stored = layer.weight.float()
    output = layer(torch.eye(4))
    assert torch.equal(output - layer.bias.float(), stored.T)
    assert layer.weight.dtype is torch.float8_e4m3fn


def test_a_forward_that_fails_stores_weights_small_again() -> None:
    layer = add_hook_to_module(torch.nn.Linear(4, 4), LayerwiseCastingHook(torch.float16, torch.float32, False))
    with pytest.raises(RuntimeError, match="shapes"):
        layer(torch.ones(1, 3))
    assert layer.weight.dtype is torch.float16
