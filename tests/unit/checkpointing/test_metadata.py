"""Tensors of a DCP folder go into the memory that waits for them, and mean the same where they can't."""

from __future__ import annotations

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint import FileSystemReader

from accelerate.checkpointing.metadata import SafePlanner, SafeReader

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")

SAVED = {
    "plain": torch.arange(12.0).view(3, 4),
    "turned": torch.arange(12.0).view(3, 4).t(),
    "number": torch.tensor(7.0),
    "none": torch.empty(0, 3),
    "half": torch.arange(6).to(torch.bfloat16),
    "truth": torch.tensor([True, False]),
    "complex": torch.tensor([1 + 2j]),
}


@pytest.fixture
def folder(tmp_path):
    dcp.save({**SAVED, "words": {"a": [1, "b"]}}, checkpoint_id=tmp_path / "shards", no_dist=True)
    return tmp_path / "shards"


@pytest.fixture
def left_to_torch(monkeypatch):
    """The names of what the reader leaves to torch."""
    names = []
    theirs = FileSystemReader.read_data

    def read_data(self, plan, planner):
        names.extend(item.dest_index.fqn for item in plan.items)
        return theirs(self, plan, planner)

    monkeypatch.setattr(FileSystemReader, "read_data", read_data)
    return names


def load(folder, state, threads=1):
    dcp.load(state, storage_reader=SafeReader(folder, threads), planner=SafePlanner(), no_dist=True)
    return state


@pytest.mark.parametrize(
    ("name", "target", "by_torch"),
    [(name, torch.zeros_like(value, memory_format=torch.contiguous_format), name) for name, value in SAVED.items()]
    + [("plain", torch.zeros(3, 4, dtype=torch.float64), "plain"), ("plain", torch.zeros(4, 3).t(), "plain")],
)
def test_tensors_are_read_whole(folder, left_to_torch, name, target, by_torch):
    memory = target.data_ptr()
    found = load(folder, {name: target})[name]
    assert found.data_ptr() == memory
    assert found.equal(SAVED[name].to(target.dtype))
    odd = name in ("turned", "complex") or target.dtype != SAVED[name].dtype or not target.is_contiguous()
    assert left_to_torch == ([by_torch] if odd else [])


def test_what_is_no_tensor_comes_back_as_it_was(folder):
    assert load(folder, {"words": {"a": [0, ""]}}) == {"words": {"a": [1, "b"]}}


@pytest.mark.parametrize("threads", [1, 3])
def test_tensors_that_are_described_alike_are_understood_once(tmp_path, monkeypatch, threads):
    saved = {f"{number}": torch.full((1000,), float(number)) for number in range(5)} | {"other": torch.arange(1000)}
    dcp.save(saved, checkpoint_id=tmp_path / "shards", no_dist=True)
    understood, theirs = [], torch.load
    monkeypatch.setattr(torch, "load", lambda *args, **kwargs: understood.append(args) or theirs(*args, **kwargs))
    found = load(tmp_path / "shards", {name: torch.zeros_like(value) for name, value in saved.items()}, threads)
    assert all(found[name].equal(value) for name, value in saved.items())
    assert len(understood) == 2


@pytest.mark.parametrize(("dim", "by_torch"), [(0, []), (1, ["plain"])])
def test_a_part_of_a_tensor_is_read(folder, left_to_torch, dim, by_torch):

    target = torch.zeros(SAVED["plain"].narrow(dim, 1, 2).shape)

    class Part(SafePlanner):
        def create_local_plan(self):
            plan = super().create_local_plan()
            offsets = torch.Size((1, 0) if dim == 0 else (0, 1))
            (item,) = plan.items
            object.__setattr__(item, "storage_offsets", offsets)
            object.__setattr__(item, "lengths", target.shape)
            return plan

        def resolve_tensor(self, item):
            return target

    dcp.load({"plain": torch.zeros(3, 4)}, storage_reader=SafeReader(folder), planner=Part(), no_dist=True)
    assert target.equal(SAVED["plain"].narrow(dim, 1, 2))
    assert left_to_torch == by_torch


def test_a_file_that_ends_early_is_an_error(folder, monkeypatch):
    monkeypatch.setattr("accelerate.checkpointing.reading.fill_from", lambda file, begin, values: 0)
    with pytest.raises(BaseException, match="ends before the values of plain do"):
        load(folder, {"plain": torch.zeros(3, 4)})
