"""Checkpoints of several ranks: written once, agreed on by all, and loaded by more or fewer ranks than wrote them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from torch.utils.data import DataLoader

from .conftest import world_of
from .recipes import build_model, data


def build(folder, *, steps=1, batch=2, seed=0):
    """Return an Accelerator with automatic naming, and what it has prepared."""
    from accelerate import Accelerator
    from accelerate.utils import ProjectConfiguration, set_seed

    accelerator = Accelerator(
        cpu=True,
        gradient_accumulation_steps=steps,
        scheduler_unit="update",
        project_config=ProjectConfiguration(project_dir=str(folder), automatic_checkpoint_naming=True, total_limit=2),
    )
    model = build_model("plain")
    set_seed(seed, device_specific=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    loader = DataLoader(data(48), batch_size=batch, shuffle=True)
    return accelerator, *accelerator.prepare(model, optimizer, loader)


def train(accelerator, model, optimizer, loader, stop=None):
    """Train one epoch or up to batch `stop`, and return the samples of each step over all ranks."""
    seen = []
    for index, x, y, _ in loader:
        with accelerator.accumulate(model):
            accelerator.backward((model(x) - y).square().mean())
            optimizer.step()
            optimizer.zero_grad()
        seen.append(accelerator.gather(index).tolist())
        if len(seen) == stop:
            accelerator.save_state()
            break
    return seen


def weights(accelerator, model):
    return {name: value.clone() for name, value in accelerator.unwrap_model(model).state_dict().items()}


def save(folder, steps=1, stop=4):
    accelerator, model, optimizer, loader = build(folder, steps=steps)
    seen = train(accelerator, model, optimizer, loader, stop)
    moments = [state["exp_avg"].clone() for state in optimizer.state.values()]
    return seen, weights(accelerator, model), moments


def resume(folder, steps=1):
    accelerator, model, optimizer, loader = build(folder, steps=steps, seed=5)
    position = accelerator.resume()
    loaded = weights(accelerator, model)
    moments = [state["exp_avg"].clone() for state in optimizer.state.values()]
    noise, step = torch.rand(1).item(), accelerator.step
    return train(accelerator, model, optimizer, loader), loaded, moments, noise, position, step


@pytest.mark.parametrize(("before", "after"), [(1, 2), (2, 1), (2, 4), (4, 2), (1, 4), (4, 1)])
def test_another_number_of_ranks_goes_on_where_the_others_stopped(before, after, tmp_path):
    (seen, saved, moments), *_ = world_of(before).run(save, tmp_path)
    outcomes = world_of(after).run(resume, tmp_path)
    first_rest, _, _, _, position, _ = outcomes[0]
    assert position.folder == tmp_path / "checkpoints" / "checkpoint_0"
    for rest, loaded, loaded_moments, *_ in outcomes:
        assert rest == first_rest
        assert all(torch.equal(loaded[name], saved[name]) for name in saved)
        assert all(map(torch.equal, loaded_moments, moments))
    flat = [index for step in (*seen, *first_rest) for index in step]
    assert sorted(flat) == list(range(48)), "every sample once"
    assert len({noise for _, _, _, noise, *_ in outcomes}) == after, "ranks draw different numbers"


def test_more_ranks_begin_a_new_window_and_agree_about_it(tmp_path):
    """Micro-batch 4 of windows of 3 is in the middle of one: its gradients belong to the ranks that made them."""
    world_of(1).run(save, tmp_path, steps=3)
    outcomes = world_of(2).run(resume_with_a_word, tmp_path, steps=3)
    assert [said for _, said in outcomes] == [True, True]
    assert [(len(rest), step) for (rest, *_, step), _ in outcomes] == [(10, 0)] * 2


def resume_with_a_word(folder, steps):
    """Resume, and say whether a warning told of the gradients that are left out."""
    import warnings

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        outcome = resume(folder, steps)
    return outcome, any("in the middle of accumulating gradients" in str(each.message) for each in caught)


def files_by_writer(folder):
    """Save, and return the names of the files that this rank wrote."""
    from accelerate.checkpointing import records as saving

    accelerator, model, optimizer, loader = build(folder)
    train(accelerator, model, optimizer, loader, stop=1)
    written = []
    original = saving.Sink

    def watched(path):
        written.append(path.name)
        return original(path)

    saving.Sink = watched
    try:
        accelerator.save_state()
    finally:
        saving.Sink = original
    return written


def test_the_writing_is_shared_out_and_each_file_is_written_once(tmp_path):
    first, second = world_of(2).run(files_by_writer, tmp_path)
    assert "model.safetensors" in first
    assert "optimizer.bin" in second
    both = first + second
    assert len(set(both)) == len(both)
    folder = tmp_path / "checkpoints" / "checkpoint_1"
    assert {*both, "manifest.json"} == {path.name for path in folder.iterdir()}


class Failing:
    """A registered object that can't be saved on one rank."""

    def __init__(self, rank):
        self.rank = rank

    def state_dict(self):
        if int(os.environ["RANK"]) == self.rank:
            raise OSError("no space left on device")
        return {"n": 1}

    def load_state_dict(self, state):
        pass


def fail(folder, rank, blocking):
    accelerator, model, optimizer, loader = build(folder)
    train(accelerator, model, optimizer, loader, stop=2)
    accelerator.register_for_checkpointing(Failing(rank))
    try:
        accelerator.save_state(blocking=blocking)
    except (OSError, RuntimeError) as error:
        return type(error).__name__, str(error), accelerator.save_iteration
    return None


@pytest.mark.parametrize("blocking", [True, False])
@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_that_fails_stops_the_save_on_all_and_leaves_the_last_one(rank, blocking, tmp_path):
    outcomes = world_of(2).run(fail, tmp_path, rank, blocking)
    assert outcomes[rank][:2] == ("OSError", "no space left on device")
    assert outcomes[1 - rank][0] == "RuntimeError"
    assert f"rank {rank} failed: OSError: no space left on device" in outcomes[1 - rank][1]
    assert [iteration for *_, iteration in outcomes] == [1, 1]
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["checkpoint_0"]


def lose_a_file(folder, name):
    accelerator, model, optimizer, loader = build(folder)
    train(accelerator, model, optimizer, loader, stop=1)
    train(accelerator, model, optimizer, loader, stop=1)
    before = weights(accelerator, model)
    accelerator.wait_for_everyone()
    if accelerator.is_main_process:
        (Path(folder) / "checkpoints" / "checkpoint_1" / name).unlink()
    accelerator.wait_for_everyone()
    try:
        accelerator.load_state(Path(folder) / "checkpoints" / "checkpoint_1")
    except RuntimeError as error:
        same = all(torch.equal(before[key], value) for key, value in weights(accelerator, model).items())
        return str(error), same, accelerator.resume().folder.name
    return None


@pytest.mark.parametrize("name", ["random_states_1.pkl", "optimizer.bin"])
def test_what_one_rank_lacks_is_said_by_all_and_the_checkpoint_before_is_found(name, tmp_path):
    outcomes = world_of(2).run(lose_a_file, tmp_path, name)
    assert outcomes[0] == outcomes[1]
    said, same, found = outcomes[0]
    assert f"- {name} is missing" in said
    assert same
    assert found == "checkpoint_0"


def several_models(folder):
    """Two models, of which a hook writes and reads one itself, as scripts for diffusion models do."""
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    first, second = accelerator.prepare(torch.nn.Linear(2, 2), torch.nn.Linear(3, 3))

    def write(models, states, output_dir):
        assert [type(model) for model in models] == [torch.nn.Linear] * 2
        if accelerator.is_main_process:
            os.makedirs(os.path.join(output_dir, "second"))
            torch.save(states[1], os.path.join(output_dir, "second", "weights.bin"))
            states.pop()

    def read(models, input_dir):
        models.pop().load_state_dict(torch.load(os.path.join(input_dir, "second", "weights.bin")))

    accelerator.register_save_state_pre_hook(write)
    accelerator.register_load_state_pre_hook(read)
    saved = [weights(accelerator, model) for model in (first, second)]
    accelerator.save_state(folder)
    with torch.no_grad():
        for model in (first, second):
            for parameter in model.parameters():
                parameter.zero_()
    accelerator.load_state(folder)
    return all(
        torch.equal(value, before[name])
        for model, before in zip((first, second), saved, strict=True)
        for name, value in weights(accelerator, model).items()
    )


def test_hooks_of_the_main_process_decide_what_is_written(tmp_path):
    assert world_of(2).run(several_models, tmp_path / "c") == [True, True]
    names = {path.relative_to(tmp_path / "c").as_posix() for path in (tmp_path / "c").rglob("*") if path.is_file()}
    assert names == {
        "manifest.json",
        "model.safetensors",
        "random_states_0.pkl",
        "random_states_1.pkl",
        "second/weights.bin",
    }
    (tmp_path / "c" / "second" / "weights.bin").write_bytes(b"")
    with pytest.raises(AssertionError, match="second/weights.bin has 0 bytes"):
        world_of(2).run(load_only, tmp_path / "c")


def load_only(folder):
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    accelerator.prepare(torch.nn.Linear(2, 2))
    accelerator.load_state(folder)


def in_turn(folder):
    """Save in the background again and again while training goes on; return which saves were there in the end."""
    accelerator, model, optimizer, loader = build(folder)
    for index, x, y, _ in loader:
        accelerator.backward((model(x) - y).square().mean())
        optimizer.step()
        optimizer.zero_grad()
        accelerator.save_state(blocking=False)
        accelerator.gather(index)
    accelerator.end_training()
    return sorted(path.name for path in (Path(folder) / "checkpoints").iterdir())


def test_saves_in_the_background_do_not_get_between_the_collectives_of_training(tmp_path):
    world = world_of(2)
    try:
        assert world.run(in_turn, tmp_path) == [["checkpoint_10", "checkpoint_11"]] * 2
    finally:
        world.close()  # its process group is gone
