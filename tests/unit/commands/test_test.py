"""`accelerate test`: the self test is launched as a training would be."""

from __future__ import annotations

import argparse
import subprocess
from pathlib import Path

import pytest

from accelerate.commands import launch
from accelerate.commands import test as command


def test_the_self_test_is_launched_with_the_given_settings(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    launched: list[argparse.Namespace] = []
    monkeypatch.setattr(launch, "launch_command", launched.append)
    line = ["--config_file", "c.yaml", "--num_processes", "2", "--cpu"]
    command.test_command(command.test_command_parser().parse_args(line))
    (args,) = launched
    assert (args.config_file, args.num_processes, args.cpu, args.training_script_args) == ("c.yaml", 2, True, [])
    assert Path(args.training_script).name == "test_script.py"
    assert Path(args.training_script).is_file()
    assert command.SUCCESS in capsys.readouterr().out


def test_a_failure_is_not_called_a_success(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def fail(args: argparse.Namespace) -> None:
        raise subprocess.CalledProcessError(1, ["x"])

    monkeypatch.setattr(launch, "launch_command", fail)
    with pytest.raises(subprocess.CalledProcessError):
        command.test_command(command.test_command_parser().parse_args([]))
    assert capsys.readouterr().out == ""
