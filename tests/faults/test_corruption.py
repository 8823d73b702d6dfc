"""Every file of a checkpoint, damaged in every way: loading refuses it by name, and the one before is found."""

from __future__ import annotations

import random
import shutil

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from accelerate import Accelerator
from accelerate.checkpointing import CheckpointError
from accelerate.state import AcceleratorState, GradientState
from accelerate.utils import ProjectConfiguration

DAMAGES = {
    "cut short by a byte": lambda data, dice: data[:-1],
    "cut in half": lambda data, dice: data[: len(data) // 2],
    "emptied": lambda data, dice: b"",
    "removed": lambda data, dice: None,
    "one bit flipped": lambda data, dice: flipped(data, dice.randrange(len(data)), 1 << dice.randrange(8)),
    "a byte flipped at the start": lambda data, dice: flipped(data, 0, 0xFF),
    "a byte flipped at the end": lambda data, dice: flipped(data, len(data) - 1, 0xFF),
    "a byte more": lambda data, dice: data + b"\0",
    "zeroed": lambda data, dice: bytes(len(data)),
}


def flipped(data: bytes, place: int, bits: int) -> bytes:
    return data[:place] + bytes([data[place] ^ bits]) + data[place + 1 :]


class Counter:
    """What is registered: it tells which checkpoint was loaded."""

    count = 0

    def state_dict(self):
        return {"count": self.count}

    def load_state_dict(self, state):
        self.count = state["count"]


def build(folder):
    """Return an Accelerator with something of every kind prepared, the model, and a registered counter."""
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()
    config = ProjectConfiguration(project_dir=folder, automatic_checkpoint_naming=True)
    accelerator = Accelerator(cpu=True, mixed_precision="fp16", gradient_accumulation_steps=3, project_config=config)
    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.AdamW(model.parameters())
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    loader = DataLoader(TensorDataset(torch.randn(8, 4)), batch_size=1, shuffle=True)
    counter = Counter()
    accelerator.register_for_checkpointing(counter)
    model, optimizer, scheduler, loader = accelerator.prepare(model, optimizer, scheduler, loader)

    def train(batches):
        for number, (x,) in enumerate(loader, 1):
            with accelerator.accumulate(model):
                accelerator.backward(model(x).sum())
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
            if number == batches:
                counter.count += 1
                accelerator.save_state()
                return

    return accelerator, model, counter, train


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    """A project with two checkpoints, the second in the middle of accumulating gradients."""
    folder = tmp_path_factory.mktemp("project")
    _, _, _, train = build(folder)
    train(3)
    train(5)
    return folder


FILES = [
    "model.safetensors",
    "optimizer.bin",
    "scheduler.bin",
    "scaler.pt",
    "custom_checkpoint_0.pkl",
    "random_states_0.pkl",
    "gradients_0.bin",
    "data_loaders.bin",
    "manifest.json",
]


def test_these_are_all_the_files(project):
    assert sorted(path.name for path in (project / "checkpoints" / "checkpoint_1").iterdir()) == sorted(FILES)


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES.keys())
@pytest.mark.parametrize("name", FILES)
def test_damage_is_refused_by_name_and_the_one_before_is_found(project, tmp_path, name, damage):
    shutil.copytree(project / "checkpoints", tmp_path / "checkpoints")
    path = tmp_path / "checkpoints" / "checkpoint_1" / name
    data = damage(path.read_bytes(), random.Random(name))
    path.unlink()
    if data is not None:
        path.write_bytes(data)
    accelerator, model, counter, _ = build(tmp_path)
    before = model.weight.detach().clone()
    with pytest.raises(CheckpointError, match=f"- {name} "):
        accelerator.load_state(tmp_path / "checkpoints" / "checkpoint_1")
    assert torch.equal(model.weight, before)
    assert counter.count == 0
    assert accelerator.resume().folder.name == "checkpoint_0"
    assert counter.count == 1


def test_a_file_of_another_checkpoint_is_refused(project, tmp_path):
    """It is intact and of the right size, but not the one that was saved here."""
    shutil.copytree(project / "checkpoints", tmp_path / "checkpoints")
    shutil.copy(
        project / "checkpoints" / "checkpoint_0" / "model.safetensors", tmp_path / "checkpoints" / "checkpoint_1"
    )
    accelerator, *_ = build(tmp_path)
    with pytest.raises(CheckpointError, match=r"- model.safetensors is damaged"):
        accelerator.load_state(tmp_path / "checkpoints" / "checkpoint_1")
