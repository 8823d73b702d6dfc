"""`accelerate env`: facts for a bug report, as text, as JSON and as a value."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

import pytest

from accelerate.commands.env import CONFIG, env_command, env_command_parser

NAMES = [
    "`Accelerate` version",
    "Platform",
    "`accelerate` bash location",
    "Python version",
    "Numpy version",
    "PyTorch version",
    "PyTorch accelerator",
    "System RAM",
    CONFIG,
]


@pytest.fixture
def home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A home without a config file."""
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    return tmp_path


def test_facts_are_returned_and_printed(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    facts = env_command(argparse.Namespace(config_file=None))
    shown = capsys.readouterr().out
    assert [name for name in NAMES if name not in facts] == []
    assert f"- Platform: {facts['Platform']}\n" in shown
    assert shown.endswith("- `Accelerate` default config:\n\tNot found\n")


def test_the_config_file_is_shown(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (home / "c.yaml").write_text("{distributed_type: MULTI_CPU, num_processes: 2}")
    args = env_command_parser().parse_args(["--config_file", str(home / "c.yaml")])
    assert env_command(args)[CONFIG]["num_processes"] == 2
    assert "- `Accelerate` config:\n\t- compute_environment: LOCAL_MACHINE\n" in capsys.readouterr().out


def test_json_has_the_same_facts(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    facts = env_command(env_command_parser().parse_args(["--json"]))
    assert json.loads(capsys.readouterr().out) == facts


def test_without_an_accelerator_torch_is_not_imported(home: Path) -> None:
    code = (
        "import sys; from accelerate.commands import env\n"
        "from accelerate.launchers import hardware; hardware.find_hardware = lambda environ: hardware.Hardware()\n"
        "env.collect(); print('torch' in sys.modules)"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True).stdout
    assert shown == "False\n"
