"""What transformers, diffusers, peft and others do with hooks from outside, each as they do it."""

from __future__ import annotations

import inspect

import pytest
import torch

import accelerate.hooks
from accelerate.hooks import (
    AlignDevicesHook,
    CpuOffload,
    LayerwiseCastingHook,
    add_hook_to_module,
    attach_align_device_hook,
)
from tests.unit.hooks.models import TOKENS, Model, devices

INPUT = torch.ones(1, 4)


def rebuilt(hook: object) -> object:
    """Return a hook like another, as published code makes it: from attributes that are constructor parameters."""
    cls = getattr(accelerate.hooks, type(hook).__name__)
    parameters = inspect.signature(cls.__init__).parameters
    return cls(**{name: value for name, value in hook.__dict__.items() if name in parameters})


@pytest.mark.parametrize(
    "hook",
    [
        AlignDevicesHook("cpu", True, True, {"a": 1}, True, True, ["cache"], {1: {}}),
        CpuOffload("cpu"),
        LayerwiseCastingHook(torch.float16, torch.float32, True),
    ],
    ids=lambda hook: type(hook).__name__,
)
def test_a_hook_is_rebuilt_from_its_attributes(hook: object) -> None:
    twin = rebuilt(hook)
    parameters = list(inspect.signature(type(hook).__init__).parameters)[1:]
    assert parameters == [name for name in parameters if name in hook.__dict__]
    assert [getattr(twin, name) for name in parameters] == [getattr(hook, name) for name in parameters]


@pytest.mark.parametrize(
    "name", [name for name in accelerate.hooks.__all__ if name.endswith("Hook") or name == "CpuOffload"]
)
def test_every_class_keeps_its_arguments_under_their_names(name: str) -> None:
    cls = getattr(accelerate.hooks, name)
    given: dict[str, object] = {
        parameter: object() for parameter in inspect.signature(cls.__init__).parameters if parameter != "self"
    }
    if name == "SequentialHook":
        assert cls(*given.values()).__dict__ == {"hooks": tuple(given.values())}
    elif name == "ModelHook":
        assert cls().__dict__ == {}
    else:
        given |= {"execution_device": "cpu"} if "execution_device" in given else {}
        hook = cls(**given)
        assert {parameter: hook.__dict__.get(parameter) for parameter in given} == given


def test_a_rebuilt_hook_serves_the_module_that_replaces_another() -> None:
    model = Model().eval()
    expected = model(TOKENS)
    weights = dict(model.state_dict())
    attach_align_device_hook(model, execution_device="cpu", offload=True, weights_map=weights)
    old = model.head
    model.head = torch.nn.Linear(4, 5, bias=False, device="meta")
    add_hook_to_module(model.head, rebuilt(old._hf_hook))
    assert torch.equal(model(TOKENS), expected)


def test_offloaded_modules_are_told_by_their_original_devices() -> None:
    resident, offloaded = AlignDevicesHook("cpu"), AlignDevicesHook("cpu", offload=True)
    add_hook_to_module(torch.nn.Linear(2, 2), resident)
    assert not hasattr(offloaded, "original_devices")
    add_hook_to_module(torch.nn.Linear(2, 2), offloaded)
    assert not hasattr(resident, "original_devices")
    assert set(offloaded.original_devices) == {"weight", "bias"}


def test_the_names_of_all_weights_are_read_through_the_view() -> None:
    model = Model()
    attach_align_device_hook(model, execution_device="cpu", offload=True, weights_map=dict(model.state_dict()))
    hook = model.blocks[0].first._hf_hook
    assert "head.weight" in dict(hook.weights_map.dataset)
    assert hook.weights_map["weight"].shape == (4, 4)


def test_children_whose_weights_a_parent_uses_are_brought_in_by_hand() -> None:
    model = Model()
    attach_align_device_hook(model, execution_device="cpu", offload=True, weights_map=dict(model.state_dict()))
    child = model.blocks[0].second
    args, _ = child._hf_hook.pre_forward(child, INPUT)
    output = torch.nn.functional.linear(args[0], child.weight)
    assert child._hf_hook.post_forward(child, output) is output
    assert set(devices(child).values()) == {"meta"}


def test_io_is_asked_for_from_outside() -> None:
    hook = AlignDevicesHook(execution_device="cpu")
    module = add_hook_to_module(torch.nn.Linear(4, 4), hook)
    module._hf_hook.io_same_device = True
    module(INPUT)
    assert hook.input_device == torch.device("cpu")


def test_a_copied_layer_can_have_its_hook_state_looked_at() -> None:
    module = add_hook_to_module(torch.nn.Linear(4, 4), AlignDevicesHook(execution_device="cpu"))
    assert module.__dict__.get("_hf_hook").place_submodules is False
    assert list(inspect.signature(module._old_forward).parameters) == ["input"]
