"""No file of a checkpoint is executed, whoever has written it: not when it is checked, not when it is loaded."""

from __future__ import annotations

import pathlib
import pickle
from dataclasses import replace

import pytest
import torch

from accelerate.checkpointing import load_custom_state
from accelerate.checkpointing.layout import MANIFEST
from accelerate.checkpointing.manifest import read_manifest
from accelerate.checkpointing.reading import fact_of
from accelerate.checkpointing.source import CheckpointError

EXECUTED = "executed"


class Evil:
    """Executes something when it is unpickled."""

    def __reduce__(self):
        return pathlib.Path.touch, (pathlib.Path(EXECUTED),)


WAYS = {
    "torch.save": lambda path: torch.save({"state": {}, "inside": Evil()}, path),
    "pickle": lambda path: path.write_bytes(pickle.dumps(Evil())),
    "old torch.save": lambda path: torch.save(Evil(), path, _use_new_zipfile_serialization=False),
}
FILES = (
    "pytorch_model.bin",
    "optimizer.bin",
    "scheduler.bin",
    "scaler.pt",
    "random_states_0.pkl",
    "custom_checkpoint_0.pkl",
    "data_loaders.bin",
    "gradients_0.bin",
)


def saved(build, folder, safe=False):
    """Save a run in the middle of a window, with everything that a checkpoint can have, and return the Accelerator."""
    run = build(precision="fp16")
    run.accelerator.gradient_accumulation_steps = 2
    with run.accelerator.accumulate(run.models[0]):
        run.accelerator.backward(run.models[0](torch.randn(2, 3)).float().sum())
    run.accelerator.save_state(folder, safe_serialization=safe)
    return run


def admit(folder):
    """Let the manifest say that the files are as they should be, as somebody would who has exchanged one of them."""
    manifest = read_manifest(folder)
    (folder / MANIFEST).unlink()
    facts = {name: fact_of(folder / name) for name in manifest.files}
    replace(manifest, files=facts).write(folder)


def test_all_files_are_tried(build, tmp_path):
    saved(build, tmp_path / "c")
    assert sorted(path.name for path in (tmp_path / "c").iterdir()) == sorted((*FILES, MANIFEST))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", FILES)
def test_no_file_is_executed(build, tmp_path, monkeypatch, name, way):
    monkeypatch.chdir(tmp_path)
    run = saved(build, tmp_path / "c")
    WAYS[way](tmp_path / "c" / name)
    with pytest.raises(CheckpointError, match=name):
        run.accelerator.load_state(tmp_path / "c")
    admit(tmp_path / "c")
    with pytest.raises(CheckpointError, match=name):
        run.accelerator.load_state(tmp_path / "c")
    run.accelerator.load_state(tmp_path / "c", strict=False)
    (tmp_path / "c" / MANIFEST).unlink()
    with pytest.raises(CheckpointError):
        run.accelerator.load_state(tmp_path / "c")
    assert not (tmp_path / EXECUTED).exists()


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", ["random_states_0.pkl", "dl_state_dict.bin", "custom_checkpoint_0.pkl"])
def test_no_file_of_a_folder_of_1_15_is_executed(build, tmp_path, monkeypatch, name, way):
    monkeypatch.chdir(tmp_path)
    run = build()
    run.accelerator.save_state(tmp_path / "c")
    (tmp_path / "c" / MANIFEST).unlink()
    (tmp_path / "c" / "data_loaders.bin").unlink()
    states = torch.load(tmp_path / "c" / "random_states_0.pkl", weights_only=False)
    del states["checkpoint_format"]
    torch.save(states, tmp_path / "c" / "random_states_0.pkl")
    WAYS[way](tmp_path / "c" / name)
    with pytest.raises(CheckpointError, match=name):
        run.accelerator.load_state(tmp_path / "c")
    assert not (tmp_path / EXECUTED).exists()


def test_a_model_in_safetensors_that_is_no_such_file_is_refused(build, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run = saved(build, tmp_path / "c", safe=True)
    WAYS["pickle"](tmp_path / "c" / "model.safetensors")
    admit(tmp_path / "c")
    with pytest.raises(CheckpointError, match="no whole safetensors file"):
        run.accelerator.load_state(tmp_path / "c")
    run.accelerator.load_state(tmp_path / "c", strict=False)
    assert not (tmp_path / EXECUTED).exists()


def test_a_registered_object_by_itself_is_not_executed_either(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    torch.save(Evil(), tmp_path / "custom_checkpoint_0.pkl")
    with pytest.raises(pickle.UnpicklingError):
        load_custom_state(torch.nn.Linear(1, 1), tmp_path)
    assert not (tmp_path / EXECUTED).exists()


@pytest.mark.parametrize("name", ["../outside.bin", "/etc/passwd", "a/../../outside.bin"])
def test_a_manifest_that_lists_files_elsewhere_is_refused(build, tmp_path, name):
    run = saved(build, tmp_path / "c")
    (tmp_path / "outside.bin").touch()
    manifest = read_manifest(tmp_path / "c")
    (tmp_path / "c" / MANIFEST).unlink()
    replace(manifest, files={**manifest.files, name: fact_of(tmp_path / "outside.bin")}).write(tmp_path / "c")
    with pytest.raises(CheckpointError, match="leads out of the folder"):
        run.accelerator.load_state(tmp_path / "c")
