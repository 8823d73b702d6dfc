"""`accelerate merge-weights`: flags, and what is said."""

from __future__ import annotations

import pytest
import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import load_file

from accelerate.commands import accelerate_cli
from accelerate.commands import merge as command

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")


@pytest.fixture
def shards(tmp_path):
    """A folder of shards."""
    dcp.save({"model": {"a": torch.arange(4.0)}}, checkpoint_id=tmp_path / "shards", no_dist=True)
    return tmp_path / "shards"


def run(*line):
    command.merge_command(command.merge_command_parser().parse_args([str(each) for each in line]))


def test_the_weights_are_merged_and_the_shards_stay(shards, tmp_path, capsys):
    run(shards, tmp_path / "out")
    assert torch.equal(load_file(tmp_path / "out" / "model.safetensors")["a"], torch.arange(4.0))
    assert shards.exists()
    assert f"are in {tmp_path / 'out'}" in capsys.readouterr().out


@pytest.mark.parametrize("spelling", ["--unsafe_serialization", "--unsafe-serialization"])
def test_torch_save_is_used_when_asked_for(shards, tmp_path, spelling):
    run(shards, tmp_path / "out", spelling)
    assert torch.equal(torch.load(tmp_path / "out" / "pytorch_model.bin")["a"], torch.arange(4.0))


def test_the_shards_go_when_asked_for(shards, tmp_path):
    run(shards, tmp_path / "out", "--remove_checkpoint_dir")
    assert (tmp_path / "out" / "model.safetensors").exists()
    assert not shards.exists()


def test_the_shards_stay_when_merging_fails(shards, tmp_path):
    next(shards.glob("*.distcp")).write_bytes(b"")
    with pytest.raises((EOFError, RuntimeError)):
        run(shards, tmp_path / "out", "--remove_checkpoint_dir")
    assert shards.exists()


def test_a_folder_without_shards_is_an_error_in_four_parts(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["accelerate", "merge-weights", str(tmp_path), str(tmp_path / "out")])
    with pytest.raises(SystemExit) as left:
        accelerate_cli.main()
    assert left.value.code == 2
    assert "it has no .metadata file" in capsys.readouterr().err
