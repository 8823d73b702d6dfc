"""`accelerate map`: what is printed and drawn."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from accelerate.commands import map as command

WEIGHTS = {"embed.weight": torch.zeros(1024, 512, dtype=torch.bfloat16)} | {
    f"layers.{index}.proj.weight": torch.zeros(256, 512, dtype=torch.bfloat16) for index in range(4)
}


@pytest.fixture
def checkpoint(tmp_path: Path) -> str:
    """Return a checkpoint of 2 MiB: half of it an embedding, the rest four layers."""
    save_file(WEIGHTS, tmp_path / "model.safetensors", {"format": "pt"})
    return str(tmp_path / "model.safetensors")


def run(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """Run the command, and return what it prints."""
    command.map_command(command.map_command_parser().parse_args(list(words)))
    return capsys.readouterr().out


def test_a_map_of_a_file(checkpoint: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = [checkpoint, "--max-memory", "0=1536KiB,cpu=512KiB", "--disk-bandwidth", "1MB", "--link-bandwidth", "1MB"]
    shown = run(capsys, *words)
    assert "layers.0  256.0 KiB" in shown
    assert "layers.2-3  512.0 KiB, 2 x 256.0 KiB" in shown
    assert "512.0 KiB from the disk, 0.52 s at 0.001 GB/s" in shown
    assert "768.0 KiB to device 0, 0.79 s at 0.001 GB/s" in shown
    assert max(map(len, shown.splitlines())) <= 80


def test_the_picture_is_drawn_and_named(checkpoint: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    picture = tmp_path / "plan.svg"
    shown = run(capsys, checkpoint, "--max_memory", "cpu=1MiB", "--output", str(picture))
    assert shown.endswith(f"Drawn into {picture}.\n")
    assert "layers" in picture.read_text()


def test_decisions_are_explained(checkpoint: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = [checkpoint, "--max_memory", "0=1536KiB,cpu=10MiB", "--explain"]
    assert "embed (1.0 MiB) -> 0 (room 1.2 MiB, 256.0 KiB kept for the largest layer to come)" in run(capsys, *words)
    found = json.loads(run(capsys, *words, "--json"))
    assert found["devices"]["0"]["used"] == 1.25 * 2**20
    assert found["devices"]["cpu"]["parts"] == {f"layers.{index}": 2**18 for index in (1, 2, 3)}
    assert found["over_link"] == 0.75 * 2**20
    assert len(found["decisions"]) > 4


def test_weights_are_counted_in_the_format_they_are_converted_to(
    checkpoint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert json.loads(run(capsys, checkpoint, "--json"))["size"] == 2 * 2**20
    assert json.loads(run(capsys, checkpoint, "--json", "--dtype", "int8"))["size"] == 2**20


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--max_memory", "gpu=1GiB"], "accelerators go by their number"),
        (["--max_memory", "0=lots"], "can't be read as one"),
        (["--dtype", "bf61"], "no dtype of that name"),
        (["--output", "plan.gif"], "can't be drawn"),
        (["--max_memory", "0=1MiB,disk=1KiB"], "no other device has room"),
    ],
    ids=str,
)
def test_what_is_refused(checkpoint: str, words: list[str], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        command.map_command(command.map_command_parser().parse_args([checkpoint, *words]))
