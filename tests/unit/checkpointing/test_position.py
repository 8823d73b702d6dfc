"""Random states and loaders of other worlds and other devices."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from accelerate.checkpointing import source as sources
from accelerate.checkpointing.position import derived_seed, fitting
from accelerate.checkpointing.source import LOCAL_FILE_SYSTEMS, Source, is_local
from accelerate.devices.random import TORCH_KEY


def test_ranks_that_a_checkpoint_does_not_have_draw_numbers_of_their_own():
    torch.manual_seed(0)
    states = {TORCH_KEY: torch.get_rng_state()}
    torch.manual_seed(1)
    others = {TORCH_KEY: torch.get_rng_state()}
    seeds = [derived_seed(states, rank) for rank in range(8)]
    assert len(set(seeds)) == 8
    assert seeds == [derived_seed(states, rank) for rank in range(8)]
    assert seeds[3] != derived_seed(others, 3)
    assert all(0 <= seed < 2**32 for seed in seeds)


def device(count, index):
    return SimpleNamespace(spec=SimpleNamespace(rng_key="torch_cuda_manual_seed"), count=lambda: count, index=index)


@pytest.mark.parametrize(
    ("count", "index", "expected"),
    [(2, 1, ["a", "b"]), (4, 1, "b"), (4, 3, None), (1, 0, "a"), (1, None, "a")],
    ids=str,
)
def test_states_of_another_number_of_devices_serve_the_one_of_this_process(count, index, expected):
    states = {"torch_cuda_manual_seed": ["a", "b"], "random_state": 1}
    fitted = fitting(states, device(count, index))
    assert fitted.get("torch_cuda_manual_seed") == expected
    assert fitted["random_state"] == 1
    assert states == {"torch_cuda_manual_seed": ["a", "b"], "random_state": 1}


@pytest.mark.parametrize(
    ("path", "expected"), [("/data/x", False), ("/data/fast/x", True), ("/datab/x", True), ("/x", True)]
)
def test_the_file_system_of_a_folder_is_that_of_the_nearest_mount(monkeypatch, path, expected):
    mounts = [("/", "ext4"), ("/data", "nfs4"), ("/data/fast", "xfs")]
    monkeypatch.setattr(sources, "_mounts", lambda: mounts)
    assert is_local(path) is expected


def test_states_are_copied_where_files_can_vanish(monkeypatch, tmp_path):
    state = {"step": 1, "moment": torch.ones(3)}
    monkeypatch.setattr(sources, "_mounts", lambda: [("/", "nfs4")])
    owned = Source(tmp_path).owned(state)
    assert owned["step"] == 1
    assert torch.equal(owned["moment"], state["moment"])
    assert owned["moment"].data_ptr() != state["moment"].data_ptr()
    monkeypatch.setattr(sources, "_mounts", lambda: [("/", min(LOCAL_FILE_SYSTEMS))])
    assert Source(tmp_path).owned(state) is state
