"""The functions of `accelerate.checkpointing`, which work without an `Accelerator`."""

from __future__ import annotations

import pytest
import torch

import accelerate.checkpointing as checkpointing
from accelerate.checkpointing import (
    load_accelerator_state,
    load_custom_state,
    save_accelerator_state,
    save_custom_state,
)


def parts():
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.AdamW(model.parameters())
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    scheduler.step()
    return model, optimizer, scheduler, torch.amp.GradScaler("cpu", init_scale=8.0)


def test_what_was_saved_comes_back(tmp_path):
    model, optimizer, scheduler, scaler = parts()
    states = [model.state_dict()]
    returned = save_accelerator_state(tmp_path, states, [optimizer], [scheduler], [], 0, 7, scaler)
    drawn = torch.rand(1)
    assert returned == tmp_path
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "model.safetensors", "optimizer.bin", "random_states_0.pkl", "scaler.pt", "scheduler.bin"
    ]  # fmt: skip
    other, its_optimizer, its_scheduler, its_scaler = parts()
    its_scaler.load_state_dict({**its_scaler.state_dict(), "scale": 2.0})
    found = load_accelerator_state(tmp_path, [other], [its_optimizer], [its_scheduler], [], 0, its_scaler)
    assert found == {"step": 7}
    assert torch.equal(other.weight, model.weight)
    assert its_scaler.get_scale() == 8.0
    assert torch.equal(torch.rand(1), drawn)


def test_what_does_not_fit_is_refused_before_anything_changes(tmp_path):
    model, optimizer, *_ = parts()
    save_accelerator_state(tmp_path, [model.state_dict()], [optimizer], [], [], 0, 7)
    other, its_optimizer, its_scheduler, _ = parts()
    before = other.weight.clone()
    with pytest.raises(RuntimeError, match=r"scheduler.bin is missing"):
        load_accelerator_state(tmp_path, [other], [its_optimizer], [its_scheduler], [], 0)
    assert torch.equal(other.weight, before)


def test_the_map_location_is_checked(tmp_path):
    with pytest.raises(TypeError, match="map_location='cuda'"):
        load_accelerator_state(tmp_path, [], [], [], [], 0, map_location="cuda")


def test_custom_objects(tmp_path):
    class Counter:
        count = 3

        def state_dict(self):
            return {"count": self.count}

        def load_state_dict(self, state):
            self.count = state["count"]

    save_custom_state(Counter(), tmp_path, 2)
    assert [path.name for path in tmp_path.iterdir()] == ["custom_checkpoint_2.pkl"]
    counter = Counter()
    counter.count = 0
    load_custom_state(counter, str(tmp_path), 2)
    assert counter.count == 3


def test_the_public_face_shows_what_it_says():
    assert all(hasattr(checkpointing, name) for name in checkpointing.__all__)
    assert {"CheckpointError", "save_accelerator_state"} <= set(checkpointing.__all__)
