"""What people get wrong: each is an error in four parts that names it, and leaves the model as it was."""

from __future__ import annotations

import errno
import logging
import os
import re
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from accelerate.big_modeling import disk_offload, dispatch_model, load_checkpoint_and_dispatch
from accelerate.big_modeling.device_map import check_device_map, infer_auto_device_map
from accelerate.big_modeling.loading import load_checkpoint_in_model

PARTS = re.compile(r"Given: .+\nWhy not: .+\nAllowed: .+\nWhat to do: .+", re.DOTALL)


def build() -> nn.Module:
    """Three layers, of 64, 72 and 100 bytes."""
    return nn.Sequential(OrderedDict(first=nn.Linear(3, 4), norm=nn.BatchNorm1d(4), last=nn.Linear(4, 5)))


def checkpoint(folder: Path, *, without: tuple[str, ...] = (), **more: torch.Tensor) -> Path:
    """Write the weights of such a model, without some and with others."""
    weights = {name: tensor for name, tensor in build().state_dict().items() if name not in without}
    save_file({**weights, **more}, folder / "model.safetensors", {"format": "pt"})
    return folder / "model.safetensors"


def is_untouched(model: nn.Module, run: Callable[[], object], error: type[Exception]) -> str:
    """Return the message of the error that `run` raises, having looked that it changed nothing of the model."""
    tensors = {
        name: (each, each.device, each.detach().clone()) for name, each in model.state_dict(keep_vars=True).items()
    }
    with pytest.raises(error) as raised:
        run()
    after = model.state_dict(keep_vars=True)
    assert after.keys() == tensors.keys()
    for name, (tensor, device, content) in tensors.items():
        assert after[name] is tensor
        assert tensor.device == device
        assert tensor.is_meta or torch.equal(tensor, content)
    assert [name for name, each in model.named_modules() if hasattr(each, "_hf_hook")] == []
    assert not hasattr(model, "hf_device_map")
    assert "forward" not in model.__dict__
    said = str(raised.value)
    assert PARTS.search(said)
    return said


@pytest.mark.parametrize(
    ("device_map", "said"),
    [
        ({"first": "cpu", "norm": "cpu"}, ["last.weight", "last.bias"]),
        ({"first": "cpu", "norm": "cpu", "lats": "cpu"}, ["'lats' is probably meant to be 'last'"]),
        ({"first": "cpu", "norm": "cpu", "last": "cupd"}, ["last on device 'cupd'", "'cpu'", "'disk'"]),
        ({"first": "cpu", "norm": "cpu", "last": 7}, ["last on device 7", "this machine"]),
        ({"first": "cpu", "norm": "cpu", "last": "cuda:0"}, ["last on device 'cuda:0'"]),
        ({"first": "cpu", "norm": "cpu", "last": "disk"}, ["offload_dir", "last"]),
    ],
    ids=["misses", "misspells", "no device of that name", "no such number", "no such kind", "no folder"],
)
@pytest.mark.filterwarnings("ignore:The model has nothing called")
def test_maps(device_map: dict, said: list[str]) -> None:
    model = build()
    shown = is_untouched(model, lambda: dispatch_model(model, device_map), ValueError)
    assert [part for part in said if part not in shown] == []


@pytest.mark.filterwarnings("ignore:The model has nothing called")
@pytest.mark.parametrize("place", ["cpu", "meta"])
@pytest.mark.parametrize(
    "device_map", [{"first": "cpu"}, {"": 7}, {"first": "cpu", "norm": "cpu", "lats": "cpu"}, {"": "disk"}], ids=str
)
def test_maps_of_checkpoints(device_map: dict, place: str, tmp_path: Path) -> None:
    model = build().to(place)
    path = checkpoint(tmp_path)
    is_untouched(model, lambda: load_checkpoint_and_dispatch(model, path, device_map), ValueError)
    assert sorted(each.name for each in tmp_path.iterdir()) == ["model.safetensors"]


def test_a_misspelt_module_is_named_in_a_warning_too() -> None:
    with pytest.warns(UserWarning, match="nothing called lats"), pytest.raises(ValueError, match="last.weight"):
        check_device_map(build(), {"first": 0, "norm": 0, "lats": 0})


@pytest.mark.parametrize(
    "budget",
    [{0: 90, "cpu": 1000}, {"cpu": 90}, {0: 50, 1: 500, "cpu": 50}],
    ids=["accelerator", "cpu", "one of several"],
)
def test_a_budget_that_is_too_small_for_one_layer_names_it(
    budget: dict, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("accelerate.big_modeling.budget._warn_unavailable", lambda numbered: None)
    fits = 1 in budget
    with caplog.at_level(logging.WARNING, "accelerate.utils.modeling"):
        infer_auto_device_map(build(), budget)
    assert caplog.text == "" if fits else "last, which can't be split, takes 100 B" in caplog.text
    assert fits or PARTS.search(caplog.text)


def test_budgets_with_a_limit_for_the_disk_too_name_the_layer() -> None:
    with pytest.raises(ValueError, match="norm takes 72 B") as raised:
        infer_auto_device_map(build(), {"cpu": 164, "disk": 10})
    assert PARTS.search(str(raised.value))


@pytest.mark.parametrize("place", ["cpu", "meta"])
@pytest.mark.parametrize("device_map", [None, {"": "cpu"}, {"first": "cpu", "norm": "disk", "last": "cpu"}], ids=str)
def test_everything_that_does_not_fit_in_a_checkpoint_is_listed(
    place: str, device_map: dict | None, tmp_path: Path
) -> None:
    wrong = {
        "first.weight": torch.ones(9, 9),
        "last.bias": torch.ones(1),
        "more": torch.ones(1),
        "other": torch.ones(1),
    }
    path = checkpoint(tmp_path, without=("norm.bias", "last.weight"), **wrong)
    model = build().to(place)

    def load(strict: bool) -> None:
        load_checkpoint_in_model(model, path, device_map, offload_folder=tmp_path / "away", strict=strict)

    said = is_untouched(model, lambda: load(strict=True), ValueError)
    expected = ["norm.bias", "last.weight", "more", "other", "first.weight has shape (9, 9) and should have (4, 3)"]
    assert [part for part in [*expected, "last.bias has shape (1,)"] if part not in said] == []
    said = is_untouched(model, lambda: load(strict=False), ValueError)
    assert [part for part in ("first.weight", "last.bias") if part not in said] == []


@pytest.mark.parametrize("cut", [3, 200, -1], ids=["in the length", "in the header", "in the last tensor"])
@pytest.mark.parametrize("place", ["cpu", "meta"])
def test_truncated_files(cut: int, place: str, tmp_path: Path) -> None:
    path = checkpoint(tmp_path)
    path.write_bytes(path.read_bytes()[:cut])
    model = build().to(place)
    said = is_untouched(model, lambda: load_checkpoint_and_dispatch(model, path, {"": "cpu"}), ValueError)
    assert str(path) in said
    assert "bytes" in said


def test_one_truncated_shard_of_several_leaves_the_model_as_it_was(tmp_path: Path) -> None:
    weights = build().state_dict()
    names = list(weights)
    save_file({name: weights[name] for name in names[:3]}, tmp_path / "a.safetensors", {"format": "pt"})
    save_file({name: weights[name] for name in names[3:]}, tmp_path / "b.safetensors", {"format": "pt"})
    where = {name: "a.safetensors" if name in names[:3] else "b.safetensors" for name in names}
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(__import__("json").dumps({"weight_map": where}))
    file = tmp_path / "b.safetensors"
    file.write_bytes(file.read_bytes()[:-4])
    model = build()
    said = is_untouched(model, lambda: load_checkpoint_in_model(model, tmp_path), ValueError)
    assert "it is truncated" in said


@pytest.fixture(params=[errno.ENOSPC, errno.EROFS, errno.EACCES], ids=["full", "read-only", "not allowed"])
def unwritable(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Let nothing be written to offload folders, and return what the system says then."""

    def refuse(path: object, mode: str = "r", *args: object, **kwargs: object) -> object:
        if "w" in mode:
            raise OSError(request.param, os.strerror(request.param))
        return open(path, mode, *args, **kwargs)  # type: ignore[call-overload]

    monkeypatch.setattr("accelerate.big_modeling.store.open", refuse, raising=False)
    return os.strerror(request.param)


def test_offloading_to_a_folder_that_cannot_be_written_to(unwritable: str, tmp_path: Path) -> None:
    model = build()
    for run in (
        lambda: disk_offload(model, tmp_path / "away"),
        lambda: dispatch_model(model, {"first": "cpu", "norm": "cpu", "last": "disk"}, offload_dir=tmp_path / "away"),
    ):
        said = is_untouched(model, run, OSError)
        assert unwritable in said
        assert [file.name for file in (tmp_path / "away").iterdir() if file.suffix == ".dat"] == []


@pytest.mark.parametrize("kind", ["safetensors", "torch"])
@pytest.mark.parametrize("place", ["cpu", "meta"])
def test_loading_with_a_folder_that_cannot_be_written_to(
    unwritable: str, kind: str, place: str, tmp_path: Path
) -> None:
    path = checkpoint(tmp_path)
    if kind == "torch":
        path = tmp_path / "weights.bin"
        torch.save(build().state_dict(), path)
    model = build().to(place)
    device_map = {"first": "cpu", "norm": "cpu", "last": "disk"}
    said = is_untouched(
        model,
        lambda: load_checkpoint_and_dispatch(model, path, device_map, offload_folder=tmp_path / "away"),
        OSError,
    )
    assert unwritable in said
    assert str(tmp_path / "away") in said


@pytest.mark.parametrize(
    "move",
    [lambda m: m.to("cpu"), lambda m: m.to(torch.float16), lambda m: m.to("cpu", torch.float16), lambda m: m.cuda()],
    ids=["to a device", "to a dtype", "to both", "cuda"],
)
def test_a_dispatched_model_with_offloaded_parts_is_not_moved(move: Callable, tmp_path: Path) -> None:
    model = dispatch_model(build(), {"first": "cpu", "norm": "cpu", "last": "disk"}, offload_dir=tmp_path).eval()
    before = {name: (each.device, each.dtype) for name, each in model.named_parameters()}
    expected = model(torch.ones(2, 3))
    with pytest.raises(RuntimeError, match=r"(?s)Given: .*Why not: .*last.weight.*Allowed: .*What to do: "):
        move(model)
    assert {name: (each.device, each.dtype) for name, each in model.named_parameters()} == before
    assert torch.equal(model(torch.ones(2, 3)), expected)
