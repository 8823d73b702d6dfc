"""Loading: everything that is wrong is said at once and before anything changes; less than all has to be asked for."""

from __future__ import annotations

import logging
import pathlib

import pytest
import torch

from accelerate.checkpointing import CheckpointError
from accelerate.checkpointing.durable import FileFact
from accelerate.checkpointing.load import shared_out


def weights(run):
    return [model.weight.detach().clone() for model in run.models]


def refusal(run, folder, **kwargs):
    """Return why `folder` is refused, having seen that nothing changed."""
    before, count = weights(run), [counter.count for counter in run.counters]
    with pytest.raises(CheckpointError) as error:
        run.accelerator.load_state(folder, **kwargs)
    assert all(map(torch.equal, weights(run), before))
    assert [counter.count for counter in run.counters] == count
    return str(error.value)


def test_all_that_is_missing_extra_or_of_another_shape_is_in_one_message(build, tmp_path):
    build(models=2, optimizers=1, schedulers=2, counters=2).accelerator.save_state(tmp_path / "c")
    said = refusal(build(width=5, models=1, optimizers=2, schedulers=1, loaders=2, counters=3), tmp_path / "c")
    for line in (
        "model.safetensors has another shape for weight (saved: [2, 3], here: [2, 5])",
        "model_1.safetensors is there, but nothing is prepared for it",
        "optimizer.bin has another shape for",
        "optimizer_1.bin is missing",
        "scheduler_1.bin is there, but nothing is prepared for it",
        "custom_checkpoint_2.pkl is missing",
        "data_loaders.bin has the positions of 1 data loaders, 2 are prepared",
    ):
        assert f"- {line}" in said
    assert "nothing was changed" in said
    assert "strict=False" in said


def test_names_of_another_model_are_listed(build, tmp_path):
    run = build(models=0, optimizers=0, schedulers=0)
    run.accelerator.prepare(torch.nn.Sequential(torch.nn.Linear(3, 2)))
    run.accelerator.save_state(tmp_path / "c")
    said = refusal(build(optimizers=0, schedulers=0), tmp_path / "c")
    assert "- model.safetensors lacks weight, bias" in said
    assert "- model.safetensors has what the model doesn't have: 0.bias, 0.weight" in said


def test_parameters_in_another_order_are_seen(build, tmp_path):
    def one(turned):
        run = build(models=0, optimizers=0, schedulers=0)
        model = torch.nn.Sequential(torch.nn.Linear(2, 2, bias=False), torch.nn.Linear(2, 2, bias=False))
        parameters = list(model.parameters())
        optimizer = torch.optim.SGD(parameters[::-1] if turned else parameters, lr=0.1)
        run.models = [run.accelerator.prepare(model, optimizer)[0][0]]
        return run

    one(turned=False).accelerator.save_state(tmp_path / "c")
    said = refusal(one(turned=True), tmp_path / "c")
    assert (
        "- optimizer.bin holds other parameters in the place of 1.weight (saved: 0.weight), 0.weight (saved: 1" in said
    )


def test_other_parameter_groups_are_seen(build, tmp_path):
    build().accelerator.save_state(tmp_path / "c")
    run = build()
    run.optimizers[0].add_param_group({"params": [torch.nn.Parameter(torch.ones(1))]})
    said = refusal(run, tmp_path / "c")
    assert "- optimizer.bin has parameter groups of [2] parameters, the optimizer of [2, 1]" in said


def test_a_scaler_is_missed_and_is_not_ignored(build, tmp_path):
    build().accelerator.save_state(tmp_path / "full")
    assert "- scaler.pt is missing" in refusal(build(precision="fp16"), tmp_path / "full")
    build(precision="fp16", trained=False).accelerator.save_state(tmp_path / "half")
    run = build(trained=False)
    assert "- scaler.pt is there, but nothing is prepared for it" in refusal(run, tmp_path / "half")


def test_what_fits_is_restored_when_that_is_asked_for_and_the_rest_is_said(build, tmp_path, caplog):
    saved = build(models=2, counters=1)
    saved.counters[0].count = 42
    saved.accelerator.save_state(tmp_path / "c")
    run = build(models=1, optimizers=2, counters=1)
    with caplog.at_level(logging.WARNING):
        run.accelerator.load_state(tmp_path / "c", strict=False)
    assert torch.equal(run.models[0].weight, saved.models[0].weight)
    assert run.counters[0].count == 42
    assert "- optimizer_1.bin is missing" in caplog.text
    assert "- model_1.safetensors is there, but nothing is prepared for it" in caplog.text


def test_a_model_that_fits_in_part_is_restored_in_part(build, tmp_path):
    saved = build(width=3, optimizers=0, schedulers=0)
    saved.accelerator.save_state(tmp_path / "c")
    run = build(width=5, optimizers=0, schedulers=0)
    before = weights(run)[0]
    run.accelerator.load_state(tmp_path / "c", strict=False)
    assert torch.equal(run.models[0].bias, saved.models[0].bias)
    assert torch.equal(run.models[0].weight, before)


def test_chosen_parts_are_restored_and_nothing_else_is_looked_at(build, tmp_path):
    saved = build(counters=2)
    saved.accelerator.save_state(tmp_path / "c")
    (tmp_path / "c" / "optimizer.bin").unlink()
    run = build(optimizers=0, schedulers=0, loaders=2, counters=1)
    torch.manual_seed(7)
    expected = torch.rand(1)
    torch.manual_seed(7)
    run.accelerator.load_state(tmp_path / "c", parts=["models"])
    assert torch.equal(run.models[0].weight, saved.models[0].weight)
    assert run.counters[0].count == 1
    assert torch.equal(torch.rand(1), expected), "random states are another part"


def test_step_and_random_states_are_parts_of_their_own(build, tmp_path):
    run = build()
    run.accelerator.step = 5
    torch.manual_seed(3)
    run.accelerator.save_state(tmp_path / "c")
    drawn = torch.rand(1)
    other = build()
    torch.manual_seed(8)
    other.accelerator.load_state(tmp_path / "c", parts=["step"])
    assert other.accelerator.step == 5
    assert not torch.equal(torch.rand(1), drawn)
    third = build()
    third.accelerator.load_state(tmp_path / "c", parts=["rng"])
    assert third.accelerator.step == 0
    assert torch.equal(torch.rand(1), drawn)


def test_a_part_that_does_not_exist_is_named_with_the_nearest(build, tmp_path):
    build().accelerator.save_state(tmp_path / "c")
    with pytest.raises(ValueError, match="Did you mean 'optimizers'"):
        build().accelerator.load_state(tmp_path / "c", parts=["optimizer"])


def test_missing_random_states_are_no_small_matter(build, tmp_path):
    build().accelerator.save_state(tmp_path / "c")
    (tmp_path / "c" / "random_states_0.pkl").unlink()
    assert "- random_states_0.pkl is missing" in refusal(build(), tmp_path / "c")
    (tmp_path / "c" / "manifest.json").unlink()  # as a folder of 1.15, which has none
    assert "random states of rank 0 can't be restored" in refusal(build(), tmp_path / "c")


def test_a_folder_without_manifest_loads_unless_it_had_one(build, tmp_path):
    run = build()
    run.accelerator.save_state(tmp_path / "c")
    (tmp_path / "c" / "manifest.json").unlink()
    assert "- manifest.json is missing" in refusal(build(), tmp_path / "c")
    states = torch.load(tmp_path / "c" / "random_states_0.pkl", weights_only=False)
    del states["checkpoint_format"]
    torch.save(states, tmp_path / "c" / "random_states_0.pkl")
    (tmp_path / "c" / "data_loaders.bin").unlink()
    other = build()
    other.accelerator.load_state(tmp_path / "c")
    assert torch.equal(other.models[0].weight, run.models[0].weight)


class Evil:
    """Executes something when it is unpickled."""

    def __reduce__(self):
        return pathlib.Path.touch, (pathlib.Path("executed"),)


class Harmless:
    """A class of the script's own."""

    def __init__(self, value):
        self.value = value

    def __eq__(self, other):
        return self.value == other.value


def test_loading_executes_nothing_unless_asked(build, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run = build()
    run.counters[0].count = Evil()
    with pytest.warns(UserWarning, match="custom_checkpoint_0.pkl holds"):
        run.accelerator.save_state(tmp_path / "c")
    said = refusal(build(), tmp_path / "c")
    assert "- custom_checkpoint_0.pkl holds more than plain data" in said
    assert not (tmp_path / "executed").exists()
    build().accelerator.load_state(tmp_path / "c", load_kwargs={"weights_only": False})
    assert (tmp_path / "executed").exists()


def test_classes_that_are_allowed_come_back(build, tmp_path):
    run = build()
    run.counters[0].count = Harmless(3)
    with torch.serialization.safe_globals([Harmless]):
        run.accelerator.save_state(tmp_path / "c")  # no warning: it can be loaded
        other = build()
        other.accelerator.load_state(tmp_path / "c")
    assert other.counters[0].count == Harmless(3)
    assert "torch.serialization.add_safe_globals" in refusal(build(), tmp_path / "c")


@pytest.mark.parametrize("map_location", [None, "cpu", "on_device"])
def test_map_location_is_accepted(build, tmp_path, map_location):
    run = build()
    run.accelerator.save_state(tmp_path / "c")
    run.accelerator.load_state(tmp_path / "c", map_location=map_location)


def test_other_map_locations_are_refused(build, tmp_path):
    with pytest.raises(TypeError, match="map_location='cuda:0'"):
        build().accelerator.load_state(tmp_path / "c", map_location="cuda:0")


def test_what_is_loaded_does_not_hang_on_the_files(build, tmp_path):
    """The optimizer's state is mapped from the file; training changes neither the file nor needs it."""
    build().accelerator.save_state(tmp_path / "c")
    before = (tmp_path / "c" / "optimizer.bin").read_bytes()
    run = build(trained=False)
    run.accelerator.load_state(tmp_path / "c")
    run.accelerator.backward(run.models[0](torch.ones(1, 3)).sum())
    run.optimizers[0].step()
    assert (tmp_path / "c" / "optimizer.bin").read_bytes() == before
    (tmp_path / "c" / "optimizer.bin").unlink()
    run.optimizers[0].step()
    assert all(state["exp_avg"].isfinite().all() for state in run.optimizers[0].state.values())


def test_the_ranks_of_a_machine_read_about_equally_much():
    files = {name: FileFact(size, "") for name, size in {"a": 10, "b": 6, "c": 5, "d": 0}.items()}
    assert shared_out(files, list(files), 2) == [["a", "d"], ["b", "c"]]
    assert shared_out(files, ["d", "c"], 3) == [["c"], ["d"], []]
