"""From shards to one file of weights: a few tensors at a time, executing nothing that the folder contains."""

from __future__ import annotations

import os
import pickle
from collections import OrderedDict

import pytest
import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import load_file

from accelerate.checkpointing import merge as merging
from accelerate.checkpointing.merge import batched, merge
from accelerate.checkpointing.metadata import SafePlanner, SafeReader, plain_errors
from accelerate.comm.tree import leaves

STATE = {
    "layers.0.weight": torch.randn(10, 4),
    "layers.0.bias": torch.randn(10).bfloat16(),
    "count": torch.tensor(3),
    "empty": torch.empty(0, 2),
    "half": torch.randn(3).half(),
}

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")


@pytest.fixture
def shards(tmp_path):
    """A folder as FSDP leaves it behind."""
    dcp.save({"model": STATE}, checkpoint_id=tmp_path / "pytorch_model_fsdp_0", no_dist=True)
    return tmp_path / "pytorch_model_fsdp_0"


@pytest.mark.parametrize(("safe", "name"), [(True, "model.safetensors"), (False, "pytorch_model.bin")])
@pytest.mark.parametrize("batch", [1, 10**9], ids=["one tensor at a time", "all at once"])
def test_the_weights_come_out_under_their_names(shards, tmp_path, monkeypatch, safe, name, batch):
    monkeypatch.setattr(merging, "BATCH", batch)
    path = merge(shards, tmp_path / "out", safe=safe)
    assert path == tmp_path / "out" / name
    found = load_file(path) if safe else torch.load(path)
    assert found.keys() == STATE.keys()
    for key, value in STATE.items():
        assert found[key].dtype == value.dtype
        assert torch.equal(found[key], value)
    assert [each.name for each in (tmp_path / "out").iterdir()] == [name]


def test_a_folder_without_the_key_of_a_model_is_one_as_a_whole(tmp_path):
    dcp.save(STATE, checkpoint_id=tmp_path / "flat", no_dist=True)
    assert load_file(merge(tmp_path / "flat", tmp_path / "out")).keys() == STATE.keys()


def test_other_keys_beside_the_model_are_left_out(tmp_path):
    dcp.save(
        {"model": STATE, "optimizer": {"lr": 0.1}, "step": torch.ones(1)}, checkpoint_id=tmp_path / "c", no_dist=True
    )
    assert load_file(merge(tmp_path / "c", tmp_path / "out")).keys() == STATE.keys()


def test_folders_that_cannot_be_merged_are_named(shards, tmp_path):
    with pytest.raises(ValueError, match="no such folder"):
        merge(tmp_path / "nowhere", tmp_path / "out")
    with pytest.raises(ValueError, match=r"name .*pytorch_model_fsdp_0"):
        merge(tmp_path, tmp_path / "out")
    dcp.save({"model": {"a": 1}}, checkpoint_id=tmp_path / "c", no_dist=True)
    with pytest.raises(ValueError, match="no tensors in it"):
        merge(tmp_path / "c", tmp_path / "out")
    with pytest.raises(FileNotFoundError):
        merge(shards, tmp_path / "x" / "y")
    assert not (tmp_path / "out").exists()


def test_a_failure_leaves_the_file_that_was_there(shards, tmp_path):
    path = merge(shards, tmp_path / "out")
    before = path.read_bytes()
    next(shards.glob("*.distcp")).write_bytes(b"")
    with pytest.raises((EOFError, RuntimeError)):
        merge(shards, tmp_path / "out")
    assert path.read_bytes() == before
    assert len(list((tmp_path / "out").iterdir())) == 1


def test_batches_are_filled_and_a_great_tensor_has_its_own(monkeypatch):
    monkeypatch.setattr(merging, "BATCH", 10)
    sizes = {"a": 4, "b": 4, "c": 4, "great": 99, "d": 1, "e": 9, "f": 1}
    assert list(batched(list(sizes), sizes)) == [["a", "b"], ["c"], ["great"], ["d", "e"], ["f"]]
    assert list(batched([], {})) == []


class Evil:
    """Executes something when it is unpickled."""

    def __reduce__(self):
        return os.mkdir, ("executed",)


def test_metadata_executes_nothing(shards, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    metadata = SafeReader(shards).read_metadata()
    metadata.planner_data = {"model.a": Evil()}
    (shards / ".metadata").write_bytes(pickle.dumps(metadata))
    with pytest.raises(pickle.UnpicklingError, match="refers to posix.mkdir"):
        SafeReader(shards).read_metadata()
    assert not (tmp_path / "executed").exists()


@pytest.mark.parametrize("callable_", [eval, getattr, torch.load, torch.hub.load], ids=lambda each: each.__name__)
def test_callables_of_other_modules_are_refused(tmp_path, callable_):
    class Other:
        def __reduce__(self):
            return callable_, ("1",)

    (tmp_path / ".metadata").write_bytes(pickle.dumps(Other()))
    with pytest.raises(pickle.UnpicklingError, match="would execute"):
        SafeReader(tmp_path).read_metadata()


def test_objects_beside_tensors_execute_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    dcp.save({"good": OrderedDict(a=[1, 2.5]), "evil": Evil()}, checkpoint_id=tmp_path / "c", no_dist=True)
    reader = SafeReader(tmp_path / "c")
    keys = [key for key in reader.read_metadata().state_dict_metadata if key.startswith("good")]
    state = dict.fromkeys(keys)
    dcp.load(state, storage_reader=reader, planner=SafePlanner(), no_dist=True)
    assert 2.5 in leaves(list(state.values()))
    with pytest.raises(pickle.UnpicklingError, match="Weights only load failed"), plain_errors():
        dcp.load({"evil": None}, storage_reader=SafeReader(tmp_path / "c"), planner=SafePlanner(), no_dist=True)
    assert not (tmp_path / "executed").exists()
