"""`accelerate`: commands are found, only the wanted one is imported, and failures become exit codes."""

from __future__ import annotations

import argparse
import importlib
import subprocess
import sys

import pytest

from accelerate.commands import accelerate_cli
from accelerate.commands.utils import run_command


def run(monkeypatch: pytest.MonkeyPatch, *words: str) -> int | str | None:
    """Run `accelerate` with these words, and return its exit code."""
    monkeypatch.setattr(sys, "argv", ["accelerate", *words])
    with pytest.raises(SystemExit) as ended:
        accelerate_cli.main()
    return ended.value.code


def test_without_a_command_help_is_shown(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(monkeypatch) == 1
    shown = capsys.readouterr().out
    assert [name for name in accelerate_cli.COMMANDS if name not in shown] == []


def test_an_unknown_command_is_refused_with_the_nearest(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, "lanch") == 2
    assert "Did you mean 'launch'?" in capsys.readouterr().err


@pytest.mark.parametrize("command", accelerate_cli.COMMANDS)
def test_every_command_has_help_and_refuses_unknown_flags(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    flags = {"merge-weights": "--unsafe_serialization", "estimate-memory": "--max_memory", "map": "--max_memory"}
    named = {"launch": ["x.py"], "merge-weights": ["shards", "out"], "estimate-memory": ["model"], "map": ["model"]}
    flags["completion"], named["completion"] = "bash", ["bash"]
    named["to-fsdp2"] = ["--config_file", "old.yaml"]
    flag = flags.get(command, "--config_file")
    operands = named.get(command, [])
    assert run(monkeypatch, command, "--help") == 0
    assert flag in capsys.readouterr().out
    assert run(monkeypatch, command, f"{flag[:-1]}=x", *operands) == 2
    said = capsys.readouterr().err
    assert f"Did you mean {flag!r}?" in said
    assert f"accelerate {command} --help" in said


@pytest.mark.parametrize("command", accelerate_cli.COMMANDS)
def test_help_is_readable_on_80_columns(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert run(monkeypatch, command, "--help") == 0
    assert [line for line in capsys.readouterr().out.splitlines() if len(line) > 80] == []


def test_only_the_wanted_command_is_imported() -> None:
    code = (
        "import sys; from accelerate.commands.accelerate_cli import build_parser; build_parser('env')\n"
        "print([name for name in sys.modules if name.startswith('accelerate.commands.')])"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True).stdout
    assert "accelerate.commands.env" in shown
    assert "accelerate.commands.launch" not in shown


@pytest.mark.parametrize("name", ["accelerate_cli", "config", "env", "estimate", "launch", "map", "test"])
def test_commands_run_as_modules(name: str) -> None:
    module = f"accelerate.commands.{name}"
    done = subprocess.run(
        [sys.executable, "-m", module, "--help"], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.startswith("usage: accelerate")
    assert done.stderr == ""
    assert callable(importlib.import_module(module).main)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (subprocess.CalledProcessError(7, ["x"]), 7),
        (KeyboardInterrupt(), 130),
        (ValueError("Given: x\nWhy not: y"), 2),
        (FileNotFoundError("Given: x\nWhy not: y"), 2),
        (BrokenPipeError(), 1),
    ],
)
def test_failures_become_exit_codes(error: BaseException, code: int) -> None:
    def command(args: argparse.Namespace) -> None:
        raise error

    with pytest.raises(SystemExit) as ended:
        run_command(command, argparse.Namespace())
    assert ended.value.code == code


def test_a_defect_shows_its_traceback() -> None:
    def command(args: argparse.Namespace) -> None:
        raise ValueError("not ours to tell")

    with pytest.raises(ValueError, match="not ours to tell"):
        run_command(command, argparse.Namespace())
