"""Single objects on disk."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from accelerate.checkpointing import objects


def test_what_torch_saved_comes_back_numpy_values_included(tmp_path):
    state = {"weight": torch.ones(2), "best": np.float64(0.5), "history": np.arange(3)}
    objects.save_object(state, tmp_path / "state.bin")
    loaded = objects.load_object(tmp_path / "state.bin")
    assert torch.equal(loaded["weight"], state["weight"])
    assert loaded["best"] == 0.5
    assert loaded["history"].tolist() == [0, 1, 2]


def test_safetensors_hold_a_shared_tensor_once(tmp_path):
    weight = torch.arange(4.0).view(2, 2)
    objects.save_object(
        {"a": weight, "tied": weight, "transposed": weight.t()}, tmp_path / "m.safetensors", safe_serialization=True
    )
    loaded = load_file(tmp_path / "m.safetensors")
    assert sorted(loaded) == ["a", "transposed"]
    assert torch.equal(loaded["transposed"], weight.t())


def test_a_failed_save_leaves_the_old_file_and_nothing_else(tmp_path):
    file = tmp_path / "state.bin"
    objects.save_object({"a": 1}, file)
    with pytest.raises(AttributeError):
        objects.save_object({"a": lambda: None}, file)
    assert objects.load_object(file) == {"a": 1}
    assert list(tmp_path.iterdir()) == [file]


def test_loading_runs_nothing_that_the_file_contains(tmp_path):
    class Evil:
        def __reduce__(self):
            return print, ("executed",)

    torch.save(Evil(), tmp_path / "evil.bin")
    with pytest.raises(Exception, match="Weights only load failed"):
        objects.load_object(tmp_path / "evil.bin")


def test_objects_without_state_are_all_named():
    with pytest.raises(ValueError, match=r"at position 1: 'b', 2: 3"):
        objects.check_stateful([torch.nn.Linear(1, 1), "b", 3])
