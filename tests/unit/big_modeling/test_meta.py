"""Models that are built without memory: what lands on meta, what stays, and that nothing is left patched."""

from __future__ import annotations

import threading

import pytest
import torch
from torch import nn

from accelerate.big_modeling.meta import FILLERS, init_empty_weights, init_on_device

META = torch.device("meta")


class Own(nn.Parameter):
    """A class of parameters."""


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 3)
        self.norm = nn.BatchNorm1d(3)
        self.own = Own(torch.ones(2))
        self.index = nn.Parameter(torch.ones(2, dtype=torch.int32), requires_grad=False)
        noted = nn.Parameter(torch.ones(2), requires_grad=False)
        noted.note = "kept"
        self.noted = noted
        self.tied = self.layer.weight
        self.register_parameter("absent", None)
        self.register_buffer("steps", torch.arange(3))
        self.inverse = 1 / (self.steps + 1)


def test_parameters_are_on_meta_and_buffers_are_not() -> None:
    with init_empty_weights():
        model = Model()
    assert {parameter.device for parameter in model.parameters()} == {META}
    assert {buffer.device.type for buffer in model.buffers()} == {"cpu"}
    assert model.steps.tolist() == [0, 1, 2]
    assert model.inverse.device.type == "cpu"
    assert model.absent is None


def test_parameters_stay_what_they_are_otherwise() -> None:
    with init_empty_weights():
        model = Model()
    assert type(model.own) is Own
    assert model.index.dtype is torch.int32
    assert not model.index.requires_grad
    assert model.layer.weight.requires_grad
    assert model.layer.weight.shape == (3, 2)
    assert model.noted.note == "kept"
    assert not model.noted.requires_grad
    assert model.tied is model.layer.weight


@pytest.mark.parametrize("include", [True, "environment"])
def test_buffers_can_be_included(include: bool | str, monkeypatch: pytest.MonkeyPatch) -> None:
    if include == "environment":
        monkeypatch.setenv("ACCELERATE_INIT_INCLUDE_BUFFERS", "1")
        include = None
    with init_empty_weights(include_buffers=include):
        model = Model()
    assert {tensor.device for tensor in (*model.parameters(), *model.buffers())} == {META}


def test_another_device_can_be_named() -> None:
    with init_on_device("cpu"):
        assert nn.Linear(2, 2).weight.device.type == "cpu"
    with init_on_device("meta"), init_on_device("cpu"):
        assert nn.Linear(2, 2).weight.device.type == "cpu"
    with init_on_device("cpu"), init_on_device("meta"):
        assert nn.Linear(2, 2).weight.device == META


def test_everything_is_put_back_also_after_an_error() -> None:
    before = nn.Module.register_parameter
    with pytest.raises(RuntimeError, match="negative dimension"), init_empty_weights():
        nn.Linear(-1, 2)
    assert nn.Module.register_parameter is before
    assert not set(FILLERS) & set(vars(torch.Tensor))
    assert nn.Linear(2, 2).weight.device.type == "cpu"


def test_filling_has_no_effect_on_meta_and_its_effect_elsewhere() -> None:
    with init_empty_weights():
        layer = nn.Linear(2, 2)
        assert nn.init.trunc_normal_(layer.weight) is layer.weight
        real = torch.zeros(64)
        assert real.uniform_(1, 2).min() >= 1
        assert nn.init.normal_(real, mean=100.0).mean() > 50


def test_the_random_stream_is_not_used_up_by_parameters_on_meta() -> None:
    torch.manual_seed(0)
    expected = torch.rand(1)
    torch.manual_seed(0)
    with init_empty_weights():
        nn.Linear(4, 4)
    assert torch.rand(1) == expected


def test_models_of_other_threads_are_not_touched() -> None:
    built: list[str] = []
    with init_empty_weights():
        thread = threading.Thread(target=lambda: built.append(nn.Linear(2, 2).weight.device.type))
        thread.start()
        thread.join(timeout=20)
    assert built == ["cpu"]
