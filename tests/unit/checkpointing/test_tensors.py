"""Safetensors files: the same bytes as the library writes, one tensor at a time."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import save_file

from accelerate.checkpointing.durable import Sink
from accelerate.checkpointing.tensors import DTYPES, bytes_of, map_tensors_of, read_into, read_specs, write_tensors

FLOATS = {"b.weight": torch.randn(3, 4), "a": torch.tensor(2.5), "empty": torch.empty(0, 3), "ä": torch.ones(1)}
MIXED = {
    "wide": torch.arange(3),
    "bool": torch.tensor([True, False, True]),
    "half": torch.randn(5).half(),
    "double": torch.randn(2, 2, dtype=torch.float64),
    "transposed": torch.arange(6.0).view(2, 3).t(),
}


def write(path, tensors):
    sink = Sink(path)
    write_tensors(sink, tensors)
    sink.finish()


def test_the_file_is_that_of_the_library(tmp_path):
    write(tmp_path / "ours", FLOATS)
    save_file(FLOATS, tmp_path / "theirs", metadata={"format": "pt"})
    assert (tmp_path / "ours").read_bytes() == (tmp_path / "theirs").read_bytes()


@pytest.mark.parametrize("tensors", [FLOATS, MIXED, {}], ids=["floats", "mixed", "none"])
def test_what_was_written_comes_back(tmp_path, tensors):
    write(tmp_path / "file", tensors)
    found = map_tensors_of(tmp_path / "file")
    assert found.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert found[name].dtype == tensor.dtype
        assert torch.equal(found[name], tensor)
    assert read_specs(tmp_path / "file") == {name: tuple(tensor.shape) for name, tensor in tensors.items()}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_dtype_of_the_format_comes_back(tmp_path, dtype):
    tensor = torch.tensor([1, 0, 1, 1]).to(dtype)
    write(tmp_path / "file", {"x": tensor})
    found = map_tensors_of(tmp_path / "file")["x"]
    assert found.dtype == dtype
    assert bytes(bytes_of(found)) == bytes(bytes_of(tensor))


def test_what_the_format_cannot_hold_is_named(tmp_path):
    state = {"fine": torch.ones(1), "extra": {"a": 1}, "sparse": torch.eye(2).to_sparse()}
    sink = Sink(tmp_path / "file")
    with pytest.raises(ValueError, match=r"extra: dict, sparse: a torch.sparse_coo tensor") as error:
        write_tensors(sink, state)
    assert "safe_serialization=False" in str(error.value)
    sink.close()


@pytest.mark.parametrize("threads", [1, 3])
def test_values_are_read_into_tensors_that_fit(tmp_path, threads):
    write(tmp_path / "file", FLOATS | MIXED)
    fitting = {name: torch.zeros_like(value, memory_format=torch.contiguous_format) for name, value in FLOATS.items()}
    others = {
        "wide": torch.zeros(3, dtype=torch.int32),
        "half": torch.zeros(6).half(),
        "double": torch.zeros(2, 2, dtype=torch.float64).t()[:, :2],
        "bool": torch.zeros(3, dtype=torch.bool, device="meta"),
        "unknown": torch.zeros(3),
    }
    assert read_into(tmp_path / "file", fitting | others, threads) == fitting.keys()
    assert all(torch.equal(fitting[name], value) for name, value in FLOATS.items())
    assert not others["wide"].any()


def test_a_file_that_ends_before_its_values_is_an_error(tmp_path):
    write(tmp_path / "file", FLOATS)
    (tmp_path / "file").write_bytes((tmp_path / "file").read_bytes()[:-4])
    with pytest.raises(EOFError, match="ends before the values of"):
        read_into(tmp_path / "file", {"ä": torch.zeros(1)}, 1)
