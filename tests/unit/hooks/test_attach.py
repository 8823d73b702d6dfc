"""Hooks on the parts of a model: which module gets which hook, and that the model computes what it did before."""

from __future__ import annotations

import pytest
import torch

from accelerate.hooks import (
    AlignDevicesHook,
    SequentialHook,
    attach_align_device_hook,
    attach_align_device_hook_on_blocks,
    attach_execution_device_hook,
    remove_hook_from_submodules,
)
from accelerate.hooks.weights import PrefixedDataset
from tests.unit.hooks.models import PARTS, TOKENS, Model, devices


def hooks_of(model: torch.nn.Module) -> dict[str, str]:
    """Say in letters which hook each module has: offloading, placing what is inside, io, or only moving inputs."""
    found = {}
    for name, module in model.named_modules():
        hook = module.__dict__.get("_hf_hook")
        if isinstance(hook, AlignDevicesHook):
            letters = {"o": hook.offload, "p": hook.place_submodules, "i": hook.io_same_device}
            found[name] = "".join(letter for letter, is_so in letters.items() if is_so) or "-"
        elif isinstance(hook, SequentialHook):
            found[name] = "several"
    return found


def weights_of(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    return dict(model.state_dict())


def test_every_module_with_tensors_of_its_own_is_offloaded_alone() -> None:
    model = Model().eval()
    expected = model(TOKENS)
    attach_align_device_hook(model, execution_device="cpu", offload=True, weights_map=weights_of(model))
    leaves = {"embed", "norm", "head", *(f"blocks.{i}{part}" for i in (0, 1) for part in ("", ".first", ".second"))}
    assert hooks_of(model) == dict.fromkeys(leaves, "o")
    assert model.blocks[1].first._hf_hook.weights_map.prefix == "blocks.1.first."
    assert torch.equal(model(TOKENS), expected)
    remove_hook_from_submodules(model)
    assert set(devices(model).values()) == {"cpu"}
    assert torch.equal(model(TOKENS), expected)


def test_named_classes_bring_in_everything_inside_at_once() -> None:
    model = Model().eval()
    expected = model(TOKENS)
    attach_align_device_hook(
        model, execution_device="cpu", offload=True, weights_map=weights_of(model), preload_module_classes=["Block"]
    )
    assert hooks_of(model) == {"embed": "o", "blocks.0": "op", "blocks.1": "op", "norm": "o", "head": "o"}
    assert torch.equal(model(TOKENS), expected)


def test_a_model_without_map_is_offloaded_into_its_hooks() -> None:
    model = Model().eval()
    expected = model(TOKENS)
    attach_align_device_hook(model, execution_device="cpu", offload=True, offload_buffers=True)
    assert isinstance(model.norm._hf_hook.weights_map, dict)
    assert devices(model)["norm.running_mean"] == "meta"
    assert torch.equal(model(TOKENS), expected)


def test_execution_hooks_go_on_everything_that_has_weights_and_spare_what_is_hooked() -> None:
    model = Model()
    own = AlignDevicesHook(execution_device="cpu", io_same_device=True)
    model.head.__dict__["_hf_hook"] = own
    attach_execution_device_hook(model, "cpu", preload_module_classes=["Block"])
    assert hooks_of(model) == {
        "": "-",
        "embed": "-",
        "blocks": "-",
        "blocks.0": "-",
        "blocks.1": "-",
        "norm": "-",
        "head": "i",
    }


BLOCK = {"": "-", ".first": "-", ".second": "-"}


@pytest.mark.parametrize(
    ("device", "offload", "expected"),
    [
        ("cpu", False, {"": "pi"}),
        (
            dict.fromkeys(PARTS, "cpu"),
            {**dict.fromkeys(PARTS, False), "blocks.1": True},
            {
                "": "i",
                "embed": "p",
                "blocks.0": "p",
                "blocks.0.first": "-",
                "blocks.0.second": "-",
                "blocks.1": "o",
                "blocks.1.first": "o",
                "blocks.1.second": "o",
                "norm": "p",
                "head": "p",
            },
        ),
        ({"head": "cpu", "embed": "cpu"}, False, {"": "i", "embed": "p", "head": "p"}),
        ("cpu", {"head": True, "embed": False}, {"": "i", "embed": "p", "head": "o"}),
    ],
    ids=["whole", "blocks", "one value for all", "one device for all"],
)
def test_blocks_get_the_hooks_that_the_map_says(device, offload, expected: dict[str, str]) -> None:
    model = Model().eval()
    wanted = model(TOKENS)
    attach_align_device_hook_on_blocks(model, device, offload, weights_map=weights_of(model))
    assert hooks_of(model) == expected
    assert torch.equal(model(TOKENS), wanted)


def test_a_whole_model_in_a_map_is_offloaded_leaf_by_leaf_and_returns_outputs_where_inputs_were() -> None:
    model = Model().eval()
    wanted = model(TOKENS)
    attach_align_device_hook_on_blocks(model, {"": "cpu"}, {"": True}, weights_map=weights_of(model))
    assert hooks_of(model)[""] == "i"
    assert hooks_of(model)["blocks.0.first"] == hooks_of(model)["head"] == "o"
    assert torch.equal(model(TOKENS), wanted)


def test_offloading_a_whole_model_without_map() -> None:
    model = Model().eval()
    attach_align_device_hook_on_blocks(model, "cpu", True, weights_map=weights_of(model))
    assert set(hooks_of(model).values()) == {"o"}


def test_weights_tied_across_blocks_have_one_placeholder_and_come_once() -> None:
    model = Model(tied=True).eval()
    expected = model(TOKENS)
    tied: dict = {model.embed.weight.data_ptr(): {}}
    attach_align_device_hook_on_blocks(
        model,
        dict.fromkeys(PARTS, "cpu"),
        dict.fromkeys(PARTS, True),
        weights_map=weights_of(model),
        tied_params_map=tied,
    )
    assert model.head.weight is model.embed.weight
    assert torch.equal(model(TOKENS), expected)
    assert model.head.weight is model.embed.weight
    assert [list(places) for places in tied.values()] == [[torch.device("meta")]]


def test_a_tied_weight_that_is_resident_serves_the_offloaded_module_too() -> None:
    model = Model(tied=True).eval()
    expected = model(TOKENS)
    tied: dict = {model.embed.weight.data_ptr(): {}}
    offload = {**dict.fromkeys(PARTS, False), "head": True}
    weights = weights_of(model)
    attach_align_device_hook_on_blocks(
        model, dict.fromkeys(PARTS, "cpu"), offload, weights_map=weights, tied_params_map=tied
    )
    assert torch.equal(model(TOKENS), expected)
    assert model.embed.weight.device.type == "cpu"
    assert model.head.weight.device.type == "meta"


def test_a_view_of_the_weights_of_a_module() -> None:
    view = PrefixedDataset({"a.x": 1, "a.y": 2, "b.x": 3}, "a.")
    assert dict(view) == {"x": 1, "y": 2}
    assert len(view) == 2
    with pytest.raises(KeyError, match="a.z"):
        view["z"]
