"""`save_model`: one file or shards with an index, and nothing left of the model that was there before."""

from __future__ import annotations

import json
import logging
import weakref
from unittest.mock import patch

import pytest
import torch
from safetensors.torch import load_file

from accelerate import Accelerator, cpu_offload, disk_offload


def layers(count, tied=False):
    model = torch.nn.Sequential(*(torch.nn.Linear(64, 64) for _ in range(count)))
    if tied:
        model[1].weight = model[0].weight
    return model


def names(folder):
    return sorted(path.name for path in folder.iterdir())


SHARDS = [f"model-0000{number}-of-00004.safetensors" for number in range(1, 5)]


def test_a_small_model_is_one_file(tmp_path):
    model = layers(1)
    Accelerator(cpu=True).save_model(model, tmp_path / "m")
    assert names(tmp_path / "m") == ["model.safetensors"]
    assert torch.equal(load_file(tmp_path / "m" / "model.safetensors")["0.weight"], model[0].weight)


@pytest.mark.parametrize("safe", [True, False])
def test_a_great_one_is_in_shards_with_an_index(tmp_path, safe):
    model = layers(4)
    Accelerator(cpu=True).save_model(model, str(tmp_path), max_shard_size="20KB", safe_serialization=safe)
    index_name = "model.safetensors.index.json" if safe else "pytorch_model.bin.index.json"
    shards = SHARDS if safe else [f"pytorch_model-0000{number}-of-00004.bin" for number in range(1, 5)]
    assert names(tmp_path) == sorted([*shards, index_name])
    text = (tmp_path / index_name).read_text()
    index = json.loads(text)
    assert text == json.dumps(index, indent=2, sort_keys=True) + "\n"
    assert index["metadata"]["total_size"] == 4 * (64 * 64 + 64) * 4
    read = load_file if safe else torch.load
    for name, shard in index["weight_map"].items():
        assert torch.equal(read(tmp_path / shard)[name], model.state_dict()[name])


@pytest.mark.parametrize("first", ["20KB", "10GB"])
@pytest.mark.parametrize("second", ["20KB", "60KB", "10GB"])
def test_nothing_is_left_of_the_model_that_was_there(tmp_path, first, second):
    accelerator = Accelerator(cpu=True)
    (tmp_path / "config.json").touch()
    (tmp_path / "pytorch_model.bin").touch()  # another format, and none of our business
    accelerator.save_model(layers(4), tmp_path, max_shard_size=first)
    model = layers(4)
    accelerator.save_model(model, tmp_path, max_shard_size=second)
    index = tmp_path / "model.safetensors.index.json"
    expected = set(json.loads(index.read_text())["weight_map"].values()) if index.exists() else {"model.safetensors"}
    assert {path.name for path in tmp_path.glob("*.safetensors")} == expected
    assert {"config.json", "pytorch_model.bin"} <= set(names(tmp_path))
    found = {name: value for shard in expected for name, value in load_file(tmp_path / shard).items()}
    assert all(torch.equal(found[name], value) for name, value in model.state_dict().items())
    assert [name for name in names(tmp_path) if name.startswith(".")] == []


def test_a_failed_save_leaves_the_model_that_was_there(tmp_path, monkeypatch):
    from accelerate.checkpointing import models

    accelerator, model = Accelerator(cpu=True), layers(4)
    accelerator.save_model(model, tmp_path, max_shard_size="20KB")
    written = []

    def fail(sink, *others):
        written.append(sink.path.name)
        if len(written) == 3:
            raise OSError("no space left on device")
        sink.write(b"half")

    monkeypatch.setattr(models, "write_stream", fail)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(OSError, match="no space left"):
        accelerator.save_model(layers(4), tmp_path, max_shard_size="20KB")
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_shared_tensors_are_written_once_and_named(tmp_path, caplog):
    with caplog.at_level(logging.WARNING):
        Accelerator(cpu=True).save_model(layers(2, tied=True), tmp_path)
    assert sorted(load_file(tmp_path / "model.safetensors")) == ["0.bias", "0.weight", "1.bias"]
    assert "1.weight" in caplog.text


def test_prepared_models_are_saved_under_the_names_of_bare_ones(tmp_path):
    accelerator = Accelerator(cpu=True, mixed_precision="bf16", dynamo_backend="eager")
    accelerator.save_model(accelerator.prepare(layers(1)), tmp_path)
    assert sorted(load_file(tmp_path / "model.safetensors")) == ["0.bias", "0.weight"]


@pytest.mark.parametrize("safe", [True, False])
@pytest.mark.parametrize("where", ["cpu", "disk"])
def test_an_offloaded_model_is_brought_in_as_it_is_written(tmp_path, where, safe):
    model = layers(4)
    expected = {name: value.clone() for name, value in model.state_dict().items()}
    if where == "cpu":
        cpu_offload(model, torch.device("cpu"))
    else:
        disk_offload(model, tmp_path / "offload", torch.device("cpu"))
    assert all(value.is_meta for value in model.state_dict().values())
    Accelerator(cpu=True).save_model(model, tmp_path / "m", max_shard_size="20KB", safe_serialization=safe)
    files = [path for path in (tmp_path / "m").iterdir() if path.suffix in (".safetensors", ".bin")]
    assert len(files) == 4
    found = {}
    for path in files:
        found |= load_file(path) if safe else torch.load(path)
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], value) for name, value in expected.items())


def test_an_offloaded_model_is_never_in_memory_as_a_whole(tmp_path):
    model, alive = layers(4), []
    cpu_offload(model, torch.device("cpu"))
    accelerator = Accelerator(cpu=True)
    offloaded = accelerator._strategy.offloaded(model)

    def watched(fetch):
        def bring_in():
            alive[:] = [each for each in alive if each() is not None]
            tensor = fetch().clone()
            alive.append(weakref.ref(tensor))
            assert len(alive) <= 2, "one is being written, and one has just come"
            return tensor

        return bring_in

    with patch.object(type(accelerator._strategy), "offloaded") as fetches:
        fetches.return_value = {name: watched(fetch) for name, fetch in offloaded.items()}
        accelerator.save_model(model, tmp_path / "m")
    assert len(load_file(tmp_path / "m" / "model.safetensors")) == 8


def test_a_model_without_values_is_refused(tmp_path):
    with pytest.raises(RuntimeError, match="meta device, the first of them weight"):
        Accelerator(cpu=True).save_model(torch.nn.Linear(2, 2, device="meta"), tmp_path / "m")
    assert not (tmp_path / "m").exists()


def test_a_file_in_the_place_of_the_folder_is_left_alone(tmp_path, caplog):
    (tmp_path / "m").write_text("mine")
    with caplog.at_level(logging.ERROR):
        Accelerator(cpu=True).save_model(layers(1), tmp_path / "m")
    assert "this is a file" in caplog.text
    assert (tmp_path / "m").read_text() == "mine"
