"""How far the reading of a checkpoint is: a line per file, and a bar where it takes long and someone is looking."""

from __future__ import annotations

import io
import logging
import sys
from pathlib import Path

import pytest
import torch

from accelerate.big_modeling import progress
from accelerate.big_modeling.loading import load_checkpoint_in_model
from tests.unit.big_modeling.checkpoints import Net, save_sharded, trained


class Terminal(io.StringIO):
    """Something that bars are drawn in."""

    def isatty(self) -> bool:
        return True


def test_each_file_has_a_line_in_the_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    save_sharded(trained(), tmp_path)
    with caplog.at_level(logging.INFO, logger="accelerate.big_modeling"):
        load_checkpoint_in_model(Net(), tmp_path)
    lines = [record.getMessage() for record in caplog.records]
    assert [line.partition(":")[0] for line in lines] == ["Read one.safetensors", "Read two.safetensors"]
    assert "1 of 2 files" in lines[0]
    done, total = lines[1].rpartition(", ")[2].split(" of ")
    assert done == total


@pytest.mark.parametrize(
    ("seconds", "rank", "terminal", "shown"),
    [(-1, "0", Terminal, True), (-1, "1", Terminal, False), (60, "0", Terminal, False), (-1, "0", io.StringIO, False)],
    ids=["shown", "other process", "short", "no terminal"],
)
def test_a_bar_for_those_who_wait(
    seconds: float, rank: str, terminal: type, shown: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_sharded(trained(), tmp_path)
    monkeypatch.setattr(progress, "LONG", seconds)
    monkeypatch.setenv("LOCAL_RANK", rank)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stderr", terminal())
    net = Net()
    load_checkpoint_in_model(net, tmp_path)
    assert ("Loading" in sys.stderr.getvalue()) is shown
    assert ("2 of 2 files" in sys.stderr.getvalue()) is shown
    assert torch.equal(net.embed.weight, trained().embed.weight)
