"""Offload folders in the format of 1.15, and the mapping that reads from them."""

from __future__ import annotations

import copy
import errno
import json
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from accelerate.big_modeling import store
from accelerate.big_modeling.offloaded import OffloadedWeightsLoader, extract_submodules_state_dict
from accelerate.big_modeling.store import (
    load_offloaded_weight,
    load_offloaded_weights,
    offload_state_dict,
    offload_weight,
    save_offload_index,
)

CPU = torch.device("cpu")

TENSORS = {
    "float32": torch.arange(6.0).reshape(2, 3),
    "float32 scalar": torch.tensor(3.5),
    "float32 columns": torch.arange(6.0).reshape(2, 3).t(),
    "float64 empty": torch.empty(0, 3, dtype=torch.float64),
    "bfloat16": torch.tensor([1.5, -2.0], dtype=torch.bfloat16),
    "float8_e4m3fn": torch.tensor([1.0, 2.0]).to(torch.float8_e4m3fn),
    "int64": torch.tensor([70000]),
    "bool": torch.tensor([True, False]),
    "complex64": torch.tensor([1 + 2j]),
}


@pytest.mark.parametrize("name", TENSORS)
def test_a_weight_is_written_and_found(name: str, tmp_path: Path) -> None:
    tensor = TENSORS[name]
    index = offload_weight(torch.nn.Parameter(tensor, requires_grad=False), "a.weight", tmp_path, {})
    assert index == {"a.weight": {"dtype": name.split()[0], "shape": list(tensor.shape)}}
    found = load_offloaded_weight(tmp_path / "a.weight.dat", index["a.weight"])
    assert found.dtype is tensor.dtype
    assert torch.equal(found.float() if "8" in name else found, tensor.float() if "8" in name else tensor)


def test_the_files_are_raw_numbers(tmp_path: Path) -> None:
    offload_weight(TENSORS["float32 columns"], "w", tmp_path)
    assert np.fromfile(tmp_path / "w.dat", dtype="float32").tolist() == [0, 3, 1, 4, 2, 5]
    offload_weight(TENSORS["bfloat16"], "b", tmp_path)
    assert np.fromfile(tmp_path / "b.dat", dtype="int16").tolist() == TENSORS["bfloat16"].view(torch.int16).tolist()
    assert offload_weight(torch.ones(1), "w", tmp_path) is None


def test_an_index_grows(tmp_path: Path) -> None:
    save_offload_index({}, tmp_path)
    save_offload_index(None, tmp_path)
    assert not list(tmp_path.iterdir())
    save_offload_index({"a": {"dtype": "float32", "shape": [1]}}, tmp_path)
    save_offload_index({"b": {"dtype": "int8", "shape": []}}, tmp_path)
    text = (tmp_path / "index.json").read_text()
    assert list(json.loads(text)) == ["a", "b"]
    assert [line.strip()[:3] for line in text.splitlines()] == ["{", '"a"', '"b"', "}"], "a line for each"


def test_a_weight_with_several_names_is_on_the_disk_once(tmp_path: Path) -> None:
    weight = torch.ones(3)
    offload_state_dict(tmp_path / "new", {"a": weight, "b": weight, "c": weight[:2]})
    files = {name: (tmp_path / "new" / f"{name}.dat").stat().st_ino for name in "abc"}
    assert files["a"] == files["b"] != files["c"]
    loader = OffloadedWeightsLoader(save_folder=tmp_path / "new")
    assert [loader[name].tolist() for name in loader] == [[1, 1, 1], [1, 1, 1], [1, 1]]
    offload_weight(torch.zeros(3), "a", tmp_path / "new")
    assert loader["b"].tolist() == OffloadedWeightsLoader(save_folder=tmp_path / "new")["b"].tolist() == [1, 1, 1]


def test_files_that_cannot_be_linked_are_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.EPERM, "no links here")

    monkeypatch.setattr(os, "link", refuse)
    weight = torch.ones(3)
    offload_state_dict(tmp_path, {"a": weight, "b": weight})
    assert (tmp_path / "b.dat").read_bytes() == (tmp_path / "a.dat").read_bytes()


def test_a_folder_that_is_full_is_an_error_that_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Full:
        def __init__(self, path: str, *_: object, **__: object) -> None:
            Path(path).touch()

        def __enter__(self):
            return self

        def __exit__(self, *_: object) -> None: ...

        def write(self, _: object) -> int:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(store, "open", Full, raising=False)
    with pytest.raises(OSError, match=r"a.dat \(4.0 KiB\) can't be written: No space left(.|\n)*free room"):
        offload_weight(torch.ones(1024), "a", tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_folder_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="a folder that can be written to"):
        offload_weight(torch.ones(1), "a", tmp_path / "missing")


@pytest.fixture
def checkpoint(tmp_path: Path) -> str:
    tensors = {"w": torch.ones(2, 2), "i": torch.tensor([70000]), "b": torch.ones(2, dtype=torch.bfloat16)}
    path = str(tmp_path / "m.safetensors")
    save_file(tensors, path, metadata={"format": "pt"})
    return path


@pytest.mark.parametrize(
    ("entry", "dtype"),
    [
        ({"weight_name": "w", "dtype": "float16"}, torch.float16),
        ({"weight_name": "w", "dtype": "torch.bfloat16"}, torch.bfloat16),
        ({"weight_name": "w"}, torch.float32),
        ({"weight_name": "b", "dtype": "float32"}, torch.float32),
        ({"weight_name": "i", "dtype": "float16"}, torch.int64),
    ],
    ids=str,
)
def test_weights_of_a_checkpoint_are_used_where_they_are(checkpoint: str, entry: dict, dtype: torch.dtype) -> None:
    loader = OffloadedWeightsLoader(index={"name": {"safetensors_file": checkpoint, **entry}})
    assert loader["name"].dtype is dtype
    assert loader["name"].float().flatten()[0] in (1, 70000)


def test_what_is_in_memory_goes_before_what_is_in_a_file(tmp_path: Path) -> None:
    offload_state_dict(tmp_path, {"a": torch.ones(2), "b": torch.ones(1)})
    loader = OffloadedWeightsLoader(state_dict={"q": torch.ones(1), "a": torch.zeros(2)}, save_folder=tmp_path)
    assert list(loader) == loader.all_keys == ["q", "a", "b"]
    assert len(loader) == 3
    assert loader["a"].tolist() == [0, 0]
    assert loader["b"].tolist() == [1]
    assert "b" in loader
    assert "z" not in loader
    with pytest.raises(KeyError, match="z"):
        loader["z"]


def test_mapped_weights_are_one_object_until_their_entry_changes(checkpoint: str, tmp_path: Path) -> None:
    index = {"w": {"safetensors_file": checkpoint, "weight_name": "w"}}
    loader = OffloadedWeightsLoader(index=index)
    assert loader["w"] is loader["w"]
    save_file({"w": torch.zeros(2, 2)}, tmp_path / "other.safetensors", metadata={"format": "pt"})
    index["w"]["safetensors_file"] = str(tmp_path / "other.safetensors")
    assert loader["w"].sum() == 0
    assert copy.deepcopy(loader) is loader


def test_names_of_one_weight_and_weights_that_are_resident() -> None:
    weight = torch.ones(2)
    loader = OffloadedWeightsLoader(state_dict={"a": weight})
    loader.tie([["a", "b"], ["x", "y"]])
    assert loader["b"] is weight
    assert "b" in loader
    assert "x" not in loader
    resident = torch.nn.Parameter(torch.zeros(2))
    loader.share("a", [({"p": resident}, "p")])
    assert loader.onload(("a",), CPU)[0] is resident
    loader.share("a", [({"p": resident.to("meta")}, "p")])
    assert loader.onload(("a", "b"), CPU) == [weight, weight]


def test_nothing_to_load_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="nothing to load"):
        OffloadedWeightsLoader()
    with pytest.raises(FileNotFoundError):
        OffloadedWeightsLoader(save_folder=tmp_path)


def test_a_device_can_be_named_for_weights_from_files(checkpoint: str) -> None:
    loader = OffloadedWeightsLoader(index={"w": {"safetensors_file": checkpoint}}, device="meta")
    assert loader["w"].device.type == "meta"


def test_a_file_that_is_too_short_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "a.dat").write_bytes(b"1234")
    with pytest.raises(ValueError, match="truncated"):
        load_offloaded_weight(tmp_path / "a.dat", {"dtype": "float32", "shape": [2]})


def test_weights_of_a_folder_go_into_a_model(tmp_path: Path) -> None:
    layer = torch.nn.Linear(2, 2, device="meta")
    offload_state_dict(tmp_path, {"weight": torch.ones(2, 2), "bias": torch.ones(2)})
    load_offloaded_weights(layer, store.read_index(tmp_path), tmp_path)
    assert layer(torch.ones(1, 2)).tolist() == [[3, 3]]
    load_offloaded_weights(layer, None, tmp_path)


def test_part_of_a_state_dict() -> None:
    assert extract_submodules_state_dict({"a.b": 1, "a.c.d": 2, "ab": 3, "a": 4}, ["a", "q"]) == {
        "a.b": 1,
        "a.c.d": 2,
        "a": 4,
    }
