"""Dispatched models compute what the plain model does, wherever their weights are; and say what can't be dispatched.

Meta serves as an accelerator here: shapes come out right only if every weight and input is on it when it is used.
"""

from __future__ import annotations

import copy
import inspect
import json
import logging
from pathlib import Path

import pytest
import torch
from torch import nn

import accelerate
from accelerate.big_modeling import (
    cpu_offload,
    cpu_offload_with_hook,
    disk_offload,
    dispatch_model,
    load_checkpoint_and_dispatch,
)
from accelerate.big_modeling.meta import init_empty_weights
from accelerate.big_modeling.state_dicts import (
    align_hooks,
    get_state_dict_from_offload,
    get_state_dict_offloaded_model,
)
from accelerate.hooks import AlignDevicesHook, SequentialHook, remove_hook_from_submodules
from tests.unit.big_modeling.checkpoints import PARTS, TOKENS, Net, kinds, save, trained

DISK = dict.fromkeys(PARTS, "disk")


def empty(**options) -> Net:
    with init_empty_weights():
        return Net(**options).eval()


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("kind", ["m.safetensors", "m.bin"])
@pytest.mark.parametrize(
    "device_map",
    [
        {"": "cpu"},
        {"": "disk"},
        DISK,
        {**DISK, "embed": "cpu"},
        {**DISK, "head": "cpu", "norm": "cpu"},
        {**dict.fromkeys(PARTS, "cpu"), "layers.0": "disk"},
        {"embed": "disk", "layers": "disk", "norm": "cpu", "head.weight": "disk"},
    ],
    ids=lambda each: json.dumps(each) if len(each) < 3 else str(sorted(n for n, d in each.items() if d == "cpu")),
)
def test_a_loaded_model_computes_what_the_saved_one_does(
    tied: bool, kind: str, device_map: dict, tmp_path: Path
) -> None:
    net = trained(tied=tied)
    path = save(net, tmp_path / kind)
    loaded = load_checkpoint_and_dispatch(empty(tied=tied), path, device_map, offload_folder=tmp_path / "offload")
    assert loaded.hf_device_map == device_map
    for _ in range(2):
        assert torch.equal(loaded(TOKENS), net(TOKENS))
    state = get_state_dict_offloaded_model(loaded)
    assert state.keys() == net.state_dict().keys()
    assert all(torch.equal(state[name], value) for name, value in net.state_dict().items())


@pytest.mark.parametrize("plan", ["auto", "balanced", "balanced_low_0", "sequential"])
def test_plans_by_name(plan: str, tmp_path: Path) -> None:
    net = trained()
    path = save(net, tmp_path / "m.safetensors")
    loaded = load_checkpoint_and_dispatch(
        empty(), path, plan, max_memory={"cpu": 300}, offload_folder=tmp_path / "offload", dtype=torch.float32
    )
    assert set(loaded.hf_device_map.values()) == {"cpu", "disk"}
    assert torch.equal(loaded(TOKENS), net(TOKENS))


def test_loading_without_a_map_and_a_plan_that_is_none(tmp_path: Path) -> None:
    net = trained()
    path = save(net, tmp_path / "m.safetensors")
    loaded = load_checkpoint_and_dispatch(empty(), path)
    assert not hasattr(loaded, "hf_device_map")
    assert torch.equal(loaded(TOKENS), net(TOKENS))
    with pytest.raises(ValueError, match=r"'auto', 'balanced'(.|\n)*Did you mean 'auto'"):
        load_checkpoint_and_dispatch(empty(), path, "atuo")


def test_a_model_with_memory_is_written_to_the_folder_once(tmp_path: Path) -> None:
    net, expected = trained(), trained()(TOKENS)
    dispatch_model(net, DISK, offload_dir=tmp_path)
    assert {path.stem for path in tmp_path.glob("*.dat")} >= {"embed.weight", "head.weight", "layers.0.bias"}
    assert kinds(net)["layers.0.weight"] == "meta"
    assert torch.equal(net(TOKENS), expected)
    before = {path.name: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
    again = dispatch_model(empty(), DISK, offload_dir=tmp_path)
    assert {path.name: path.stat().st_mtime_ns for path in tmp_path.iterdir()} == before
    again.norm.load_state_dict(trained().norm.state_dict(), assign=True)
    assert torch.equal(again(TOKENS), expected)


def test_one_device_needs_no_hooks_unless_they_are_asked_for() -> None:
    net, expected = trained(), trained()(TOKENS)
    assert dispatch_model(net, {"": "cpu"}) is net
    assert not align_hooks(net)
    assert net.hf_device_map == {"": "cpu"}
    dispatch_model(net, dict.fromkeys(PARTS, "cpu"), force_hooks=True, skip_keys=["cache"])
    assert net._hf_hook.io_same_device
    assert net._hf_hook.execution_device == net.layers[0]._hf_hook.execution_device == "cpu"
    assert net.layers[0]._hf_hook.skip_keys == ["cache"]
    assert torch.equal(net(TOKENS), expected)


def test_weights_in_host_memory_come_to_the_accelerator_for_their_forward() -> None:
    net = trained()
    device_map = {"embed": "meta", "layers": "cpu", "norm": "cpu", "head": "meta"}
    dispatch_model(net, device_map)
    assert net._hf_hook.execution_device == net.layers[0]._hf_hook.execution_device == "meta"
    assert net.layers[0]._hf_hook.offload
    assert not net.embed._hf_hook.offload
    assert kinds(net)["layers.0.weight"] == kinds(net)["norm.running_mean"] == "meta"
    assert net(TOKENS.to("meta")).shape == (3, 6)
    remove_hook_from_submodules(net)
    assert kinds(net)["layers.0.weight"] == "cpu"


def test_the_device_of_offloaded_parts_can_be_named(tmp_path: Path) -> None:
    net = dispatch_model(trained(), {**DISK, "embed": "meta"}, main_device="cpu", offload_dir=tmp_path)
    assert net.layers[0]._hf_hook.execution_device == "cpu"
    assert net.embed._hf_hook.execution_device == "meta"


def test_a_state_dict_can_be_passed_for_weights_on_the_host() -> None:
    weights = dict(trained().state_dict())
    net = empty()
    net.norm.load_state_dict(trained().norm.state_dict(), assign=True)
    dispatch_model(net, dict.fromkeys(PARTS, "cpu"), main_device="meta", state_dict=weights, force_hooks=True)
    assert net.layers[0]._hf_hook.weights_map["weight"] is weights["layers.0.weight"]


def test_an_index_can_be_passed_for_weights_on_the_disk(tmp_path: Path) -> None:
    net = trained()
    path = str(save(net, tmp_path / "m.safetensors"))
    names = [name for name in net.state_dict() if name != "head.weight"]
    index = {name: {"safetensors_file": path, "weight_name": name, "dtype": "float32"} for name in names}
    index["norm.num_batches_tracked"]["dtype"] = "int64"
    loaded = dispatch_model(empty(), {"": "disk"}, offload_index=index, offload_buffers=True)
    loaded.shift = net.shift
    assert torch.equal(loaded(TOKENS), net(TOKENS))
    assert loaded.layers[0]._hf_hook.weights_map.dataset.index is index
    assert list(tmp_path.iterdir()) == [Path(path)]


def test_parameters_of_a_module_can_be_placed_one_by_one(tmp_path: Path) -> None:
    class Bare(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Parameter(torch.full((2,), 2.0)), nn.Parameter(torch.full((2,), 3.0))
            self.layer = nn.Linear(2, 2)
            self.inner = nn.Module()
            self.inner.scale = nn.Parameter(torch.full((2,), 5.0))
            self.inner.forward = lambda value: value * self.inner.scale

        def forward(self, value: torch.Tensor) -> torch.Tensor:
            return self.inner(self.layer(value) * self.first + self.second)

    model = Bare()
    expected = model(torch.ones(1, 2))
    device_map = {"first": "cpu", "second": "disk", "layer": "disk", "inner.scale": "disk"}
    dispatch_model(model, device_map, offload_dir=tmp_path)
    assert model.second.is_meta
    assert torch.equal(model(torch.ones(1, 2)), expected)
    assert model._hf_hook.io_same_device
    assert torch.equal(model(torch.ones(1, 2)), expected)


def test_tied_weights_stay_one_parameter(tmp_path: Path) -> None:
    net = dispatch_model(trained(), DISK, offload_dir=tmp_path)
    assert net.head.weight is net.embed.weight
    net(TOKENS)
    assert net.head.weight is net.embed.weight
    resident = dispatch_model(trained(), {**DISK, "embed": "cpu"}, offload_dir=tmp_path / "other")
    hook = resident.head._hf_hook
    hook.pre_forward(resident.head)
    assert resident.head.weight.data_ptr() == resident.embed.weight.data_ptr()
    hook.post_forward(resident.head, None)
    assert resident.head.weight.is_meta


def test_named_classes_come_in_at_once(tmp_path: Path) -> None:
    net = dispatch_model(trained(), {"": "disk"}, offload_dir=tmp_path, preload_module_classes=["ModuleList"])
    hook = net.layers._hf_hook
    assert hook.place_submodules
    assert not align_hooks(net.layers[0])


def test_a_dispatched_model_is_not_moved(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    net = dispatch_model(trained(), {**DISK, "embed": "cpu"}, offload_dir=tmp_path)
    expected = net(TOKENS)
    with pytest.raises(RuntimeError, match=r"`.to\(...\)` on a Net(.|\n)*its offloaded parts have nothing to move"):
        net.to(torch.float16)
    assert not caplog.records
    with caplog.at_level(logging.WARNING), pytest.raises(RuntimeError, match="remove_hook_from_submodules"):
        net.to("cpu")
    with pytest.raises(RuntimeError, match="cuda"):
        net.cuda()
    assert [text.split(" takes its parts away")[0] for text in caplog.messages] == [
        "`.to(...)` on a dispatched model",
        "`.cuda(...)` on a dispatched model",
    ]
    assert torch.equal(net(TOKENS), expected)
    remove_hook_from_submodules(net)
    assert net.to(torch.float64).layers[0].weight.dtype is torch.float64


def test_a_model_of_hooks_with_all_weights_resident_may_be_moved(caplog: pytest.LogCaptureFixture) -> None:
    net = dispatch_model(trained(), dict.fromkeys(PARTS, "cpu"), force_hooks=True)
    with caplog.at_level(logging.WARNING):
        assert net.to("cpu") is net
    assert "takes its parts away" in caplog.text
    assert inspect.signature(net.to) == inspect.signature(nn.Linear(1, 1).to)


def test_a_copy_of_a_dispatched_model_is_its_own(tmp_path: Path) -> None:
    net = dispatch_model(trained(), DISK, offload_dir=tmp_path)
    twin = copy.deepcopy(net)
    remove_hook_from_submodules(net)
    assert torch.equal(twin(TOKENS), trained()(TOKENS))
    assert twin.layers[0].weight.is_meta
    with pytest.raises(RuntimeError, match="have nothing to move"):
        twin.to(torch.float16)


def test_what_cannot_be_dispatched(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no entry says where these go: layers.0.weight"):
        dispatch_model(trained(), {"embed": "cpu", "norm": "cpu", "head": "cpu"})
    with pytest.raises(ValueError, match="these go to the disk, and nothing says where: layers, norm"):
        dispatch_model(trained(), {"embed": "cpu", "layers": "disk", "norm": "disk", "head": "cpu"})
    with pytest.raises(ValueError, match=r"with tensors on meta: embed.weight(.|\n)*load the checkpoint first"):
        dispatch_model(empty(), {"": "cpu"})
    with pytest.raises(ValueError, match=r"offloads embed.weight, layers.0.weight(.|\n)*they are on meta"):
        dispatch_model(empty(), {"": "disk"}, offload_dir=tmp_path)
    with pytest.raises(ValueError, match="this machine has no"):
        dispatch_model(trained(), {"": "npu:3"})
    net = trained()
    with pytest.raises(ValueError, match="torch knows no device of that name"):
        dispatch_model(net, {**DISK, "head": "gpu"}, offload_dir=tmp_path)
    assert set(kinds(net).values()) == {"cpu"}


def test_published_code_replaces_what_dispatching_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    called: list = []
    monkeypatch.setattr(accelerate.big_modeling, "check_device_map", lambda model, device_map: called.append("check"))
    original = accelerate.big_modeling.attach_align_device_hook_on_blocks

    def attach(module: nn.Module, **keywords: object) -> None:
        called.append(sorted(keywords))
        original(module, **keywords)

    monkeypatch.setattr(accelerate.big_modeling, "attach_align_device_hook_on_blocks", attach)
    net = trained()
    dispatch_model(net, {name: "cpu" for name in PARTS if name != "norm"}, force_hooks=True)
    assert called[0] == "check"
    assert "execution_device" in called[1]
    assert torch.equal(net(TOKENS), trained()(TOKENS))
    assert {"skip_keys", "force_hooks", "offload_index"} <= inspect.signature(dispatch_model).parameters.keys()


@pytest.mark.parametrize("offload_buffers", [False, True])
@pytest.mark.parametrize("classes", [None, ["Net"]])
@pytest.mark.parametrize("where", ["cpu", "disk"])
def test_everything_offloaded(where: str, classes: list | None, offload_buffers: bool, tmp_path: Path) -> None:
    net, options = trained(), {"offload_buffers": offload_buffers, "preload_module_classes": classes}
    if where == "cpu":
        assert cpu_offload(net, **options) is net
    else:
        assert disk_offload(net, tmp_path, **options) is net
    assert kinds(net)["layers.0.weight"] == "meta"
    assert kinds(net)["norm.running_mean"] == ("meta" if offload_buffers else "cpu")
    assert torch.equal(net(TOKENS), trained()(TOKENS))
    assert any(hook.io_same_device for hook in align_hooks(net))
    remove_hook_from_submodules(net)
    assert set(kinds(net).values()) == {"cpu"}
    assert torch.equal(net(TOKENS), trained()(TOKENS))


def test_a_folder_that_has_part_of_the_weights_is_completed(tmp_path: Path) -> None:
    (tmp_path / "index.json").write_text("{}")
    net = disk_offload(trained(), tmp_path)
    assert torch.equal(net(TOKENS), trained()(TOKENS))


def test_models_in_turn() -> None:
    first, hook = cpu_offload_with_hook(nn.Linear(2, 2), execution_device="cpu")
    second, other = cpu_offload_with_hook(nn.Linear(2, 2), prev_module_hook=hook)
    assert (hook.model, other.model) == (first, second)
    assert other.hook.prev_module_hook is hook
    assert second(first(torch.ones(1, 2))).shape == (1, 2)
    hook.offload()
    hook.remove()
    assert "_hf_hook" not in first.__dict__


def test_weights_of_one_module_go_into_a_state_dict(tmp_path: Path) -> None:
    net = disk_offload(trained(), tmp_path)
    state = get_state_dict_from_offload(net.layers[0], "layers.0.weight", net.state_dict())
    assert torch.equal(state["layers.0.weight"], trained().layers[0].weight)
    assert state["layers.1.weight"].is_meta


def test_weights_that_no_hook_knows_are_named() -> None:
    with pytest.raises(RuntimeError, match="tensors on meta: embed.weight, layers.0.weight"):
        get_state_dict_offloaded_model(empty())


def test_hooks_among_several_are_found(tmp_path: Path) -> None:
    net = disk_offload(trained(), tmp_path)
    hook = net.layers[0]._hf_hook
    net.layers[0].__dict__["_hf_hook"] = SequentialHook(AlignDevicesHook(), SequentialHook(hook))
    assert align_hooks(net.layers[0])[1] is hook
    assert torch.equal(net(TOKENS), trained()(TOKENS))
