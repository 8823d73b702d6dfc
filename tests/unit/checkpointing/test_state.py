"""`save_state` and `load_state` in one process: file names, naming, rotation, hooks, what comes back."""

from __future__ import annotations

import logging
import random
from pathlib import Path

import numpy as np
import pytest
import torch

from accelerate.checkpointing import CheckpointError
from accelerate.checkpointing.manifest import read_manifest


def names(folder):
    return sorted(path.name for path in Path(folder).iterdir())


def state_of(run):
    """Return everything that a checkpoint has to bring back, as plain data."""
    return {
        "models": [[p.tolist() for p in model.state_dict().values()] for model in run.models],
        "moments": [[s["exp_avg"].tolist() for s in o.state.values()] for o in run.optimizers],
        "rates": [scheduler.get_last_lr() for scheduler in run.schedulers],
        "counts": [counter.count for counter in run.counters],
        "random": (random.random(), np.random.rand(), torch.rand(1).item()),
    }


def test_everything_comes_back(build, tmp_path):
    run = build(models=2, optimizers=2, schedulers=2, loaders=2, counters=2)
    folder = run.accelerator.save_state(tmp_path / "c")
    saved = state_of(run)
    assert folder == tmp_path / "c"
    other = build(models=2, optimizers=2, schedulers=2, loaders=2, counters=2)
    other.counters[0].count = other.counters[1].count = 77
    other.accelerator.load_state(tmp_path / "c")
    assert state_of(other) == saved


@pytest.mark.parametrize(
    ("safe", "models"),
    [(True, ["model.safetensors", "model_1.safetensors"]), (False, ["pytorch_model.bin", "pytorch_model_1.bin"])],
)
def test_files_have_the_names_of_1_15(build, tmp_path, safe, models):
    run = build(models=2, optimizers=2, schedulers=2, loaders=1, counters=2, precision="fp16")
    run.accelerator.save_state(tmp_path / "c", safe_serialization=safe)
    assert names(tmp_path / "c") == sorted(
        [
            *models,
            "optimizer.bin",
            "optimizer_1.bin",
            "scheduler.bin",
            "scheduler_1.bin",
            "custom_checkpoint_0.pkl",
            "custom_checkpoint_1.pkl",
            "random_states_0.pkl",
            "scaler.pt",
            "data_loaders.bin",
            "manifest.json",
        ]
    )
    random_states = torch.load(tmp_path / "c" / "random_states_0.pkl", weights_only=False)
    assert {"step", "random_state", "numpy_random_seed", "torch_manual_seed"} <= random_states.keys()


def test_the_manifest_says_what_it_is(build, tmp_path):
    run = build()
    run.accelerator.save_state(tmp_path / "c")
    manifest = read_manifest(tmp_path / "c")
    assert set(manifest.files) == set(names(tmp_path / "c")) - {"manifest.json"}
    assert manifest.world_size == 1
    assert manifest.parts == {
        "models": 1, "optimizers": 1, "schedulers": 1, "custom": 1, "data_loaders": 1, "rng": 1
    }  # fmt: skip
    assert manifest.parameters == [[["weight", "bias"]]]
    assert manifest.versions["torch"] == torch.__version__
    assert manifest.position["data_loaders"] == [{"epoch": 0, "batches": 0}]


def test_automatic_folders_are_counted_and_the_oldest_go(build, tmp_path, recwarn):
    run = build(tmp_path, limit=2)
    folders = [run.accelerator.save_state() for _ in range(4)]
    assert folders == [tmp_path / "checkpoints" / f"checkpoint_{number}" for number in range(4)]
    assert names(tmp_path / "checkpoints") == ["checkpoint_2", "checkpoint_3"]
    assert run.accelerator.save_iteration == 4
    assert not recwarn.list


def test_the_folder_has_no_effect_with_automatic_naming_and_that_is_said(build, tmp_path):
    run = build(tmp_path / "p")
    with pytest.warns(UserWarning, match="with automatic naming the folder has no effect"):
        run.accelerator.save_state(tmp_path / "elsewhere")
    assert names(tmp_path) == ["p"]


def test_a_number_is_never_taken_twice(build, tmp_path):
    build(tmp_path).accelerator.save_state()
    with pytest.raises(ValueError, match="checkpoint of this number exists"):
        build(tmp_path).accelerator.save_state()


def test_numbers_go_on_after_loading(build, tmp_path):
    run = build(tmp_path)
    for _ in range(3):
        run.accelerator.save_state()
    other = build(tmp_path)
    other.accelerator.load_state(tmp_path / "checkpoints" / "checkpoint_1")
    assert other.accelerator.save_state().name == "checkpoint_3"


def test_a_name_is_needed(build, tmp_path):
    run = build()
    with pytest.raises(TypeError, match="doesn't say which folder"):
        run.accelerator.save_state()
    with pytest.raises(ValueError, match="doesn't say which folder"):
        run.accelerator.load_state()
    with pytest.raises(ValueError, match="there is no such folder"):
        run.accelerator.load_state(tmp_path / "nowhere")
    assert build().accelerator.save_iteration == 0


def test_folders_above_are_made_and_a_file_is_not_overwritten(build, tmp_path):
    run = build()
    run.accelerator.save_state(tmp_path / "a" / "b" / "c")
    assert "manifest.json" in names(tmp_path / "a" / "b" / "c")
    (tmp_path / "file").write_text("mine")
    with pytest.raises(FileExistsError):
        run.accelerator.save_state(tmp_path / "file")
    assert (tmp_path / "file").read_text() == "mine"


def test_a_checkpoint_of_the_same_name_is_replaced_as_a_whole(build, tmp_path):
    build(models=2).accelerator.save_state(tmp_path / "c")
    run = build(counters=0)
    (tmp_path / "c" / "notes.txt").write_text("mine")
    run.accelerator.save_state(tmp_path / "c")
    assert "model_1.safetensors" not in names(tmp_path / "c")
    assert "custom_checkpoint_0.pkl" not in names(tmp_path / "c")
    assert "notes.txt" in names(tmp_path / "c")
    assert names(tmp_path) == ["c"]
    build(counters=0).accelerator.load_state(tmp_path / "c")


def test_the_newest_valid_one_is_loaded_and_what_was_skipped_is_said(build, tmp_path, caplog):
    run = build(tmp_path)
    for count in range(4):
        run.counters[0].count = count
        run.accelerator.save_state()
    checkpoints = tmp_path / "checkpoints"
    (checkpoints / "checkpoint_3" / "optimizer.bin").unlink()
    (checkpoints / "checkpoint_2" / "manifest.json").unlink()
    (checkpoints / ".checkpoint_9.unfinished-host-1-1").mkdir()
    other = build(tmp_path)
    with caplog.at_level(logging.WARNING):
        other.accelerator.load_state()
    assert other.counters[0].count == 1
    assert "skipped checkpoint_3 (optimizer.bin is missing); checkpoint_2 (manifest.json is missing)" in caplog.text
    assert other.accelerator.save_state().name == "checkpoint_4"


def test_when_none_is_valid_all_are_named(build, tmp_path):
    run = build(tmp_path)
    for _ in range(2):
        path = run.accelerator.save_state() / "scheduler.bin"
        path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(CheckpointError, match=r"checkpoint_1 \(scheduler.bin has"):
        build(tmp_path).accelerator.load_state("latest")


def test_nothing_to_resume_from_is_no_error_for_resume_alone(build, tmp_path):
    run = build(tmp_path)
    position = run.accelerator.resume()
    assert not position
    assert position.epoch == 0
    with pytest.raises(ValueError, match="no checkpoint has been saved there"):
        run.accelerator.load_state()


def test_resume_says_where_training_stands(build, tmp_path):
    run = build(tmp_path)
    (loader,) = run.loaders
    list(loader)
    for number, _ in enumerate(loader):
        if number == 2:
            run.accelerator.save_state()
    other = build(tmp_path)
    position = other.accelerator.resume()
    assert position
    assert (position.folder.name, position.epoch, position.batches) == ("checkpoint_0", 1, 3)
    assert len(list(other.loaders[0])) == 1


def test_resume_finds_folders_of_any_name(build, tmp_path):
    run = build()
    for step in (9, 100):
        run.counters[0].count = step
        run.accelerator.save_state(tmp_path / f"step_{step}")
    other = build()
    assert other.accelerator.resume(tmp_path).folder.name == "step_100"
    assert other.counters[0].count == 100


def test_a_pass_that_was_broken_off_begins_anew(build, tmp_path):
    """As it would without a checkpoint: validation that looks at two batches doesn't go on with the third."""
    run = build()
    for _ in run.loaders[0]:
        break
    run.accelerator.save_state(tmp_path / "c")
    other = build()
    other.accelerator.load_state(tmp_path / "c")
    assert len(list(other.loaders[0])) == 4


def test_a_position_that_was_loaded_is_saved_again(build, tmp_path):
    run = build()
    for _ in run.loaders[0]:
        run.accelerator.save_state(tmp_path / "a")
        break
    other = build()
    other.accelerator.load_state(tmp_path / "a")
    other.accelerator.save_state(tmp_path / "b")
    third = build()
    third.accelerator.load_state(tmp_path / "b")
    assert len(list(third.loaders[0])) == 3


def test_numpy_numbers_in_an_optimizer_come_back(build, tmp_path):
    run = build()
    run.optimizers[0].param_groups[0]["lr"] = np.float64(0.25)
    run.accelerator.save_state(tmp_path / "c")
    assert type(torch.load(tmp_path / "c" / "optimizer.bin")["param_groups"][0]["lr"]) is float
    other = build()
    other.accelerator.load_state(tmp_path / "c")
    assert other.optimizers[0].param_groups[0]["lr"] == 0.25


def test_tied_weights_are_written_once_and_loaded_twice(build, tmp_path):
    def tied():
        run = build(models=0, optimizers=0, schedulers=0, counters=0)
        model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2))
        model[1].weight = model[0].weight
        return run.accelerator, run.accelerator.prepare(model)

    accelerator, model = tied()
    accelerator.save_state(tmp_path / "c")
    other, restored = tied()
    other.load_state(tmp_path / "c")
    assert torch.equal(restored[1].weight, model[0].weight)
    assert restored[1].weight is restored[0].weight


def test_hooks_can_be_taken_back(build, tmp_path):
    run = build()
    calls = []
    saving = run.accelerator.register_save_state_pre_hook(lambda models, weights, folder: calls.append(folder))
    loading = run.accelerator.register_load_state_pre_hook(lambda models, folder: calls.append(folder))
    run.accelerator.save_state(tmp_path / "c")
    run.accelerator.load_state(tmp_path / "c")
    assert len(calls) == 2
    assert all(isinstance(folder, str) for folder in calls)
    assert calls[1] == str(tmp_path / "c")
    saving.remove()
    loading.remove()
    run.accelerator.save_state(tmp_path / "c")
    run.accelerator.load_state(tmp_path / "c")
    assert len(calls) == 2


def test_a_failure_leaves_no_trace(build, tmp_path):
    run = build()
    run.accelerator.save_state(tmp_path / "c")
    before = {path.name: path.read_bytes() for path in (tmp_path / "c").iterdir()}
    run.counters[0].count = lambda: None  # torch.save can't pickle it
    with pytest.raises((AttributeError, TypeError)):
        run.accelerator.save_state(tmp_path / "c")
    assert {path.name: path.read_bytes() for path in (tmp_path / "c").iterdir()} == before
    assert names(tmp_path) == ["c"]
    assert run.accelerator.save_iteration == 1


def test_arguments_without_effect_are_named(build, tmp_path):
    with pytest.warns(UserWarning, match=r"exclude_frozen_parameters=...\) has no effect"):
        build().accelerator.save_state(tmp_path / "c", exclude_frozen_parameters=True)
