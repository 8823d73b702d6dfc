"""The parser of `accelerate launch`, and what programs that call the command get."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from accelerate.commands import launch
from accelerate.commands.launch import _validate_launch_command, launch_command, launch_command_parser
from accelerate.launchers import read
from accelerate.launchers.hardware import Hardware
from accelerate.launchers.single import SingleLauncher


@pytest.fixture(autouse=True)
def two_gpus(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A machine with two GPUs and no default config file."""
    monkeypatch.setattr(read, "find_hardware", lambda environ: Hardware("cuda", 2))
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()


def parsed(line: str) -> argparse.Namespace:
    """Return the parsed command line."""
    return launch_command_parser().parse_args(line.split())


def test_what_follows_the_script_is_the_scripts() -> None:
    args = parsed("--num_processes 2 train.py --num_processes 3 --x -- y")
    assert (args.num_processes, args.training_script) == (2, "train.py")
    assert args.training_script_args == ["--num_processes", "3", "--x", "--", "y"]
    assert args.nondefault == {"num_processes", "training_script", "training_script_args"}


def test_what_is_not_given_is_none() -> None:
    args = parsed("train.py")
    given = {dest for dest, value in vars(args).items() if value not in (None, [])}
    assert given == {"training_script", "nondefault"}


def test_a_script_is_needed(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        parsed("--num_processes 2")
    assert ended.value.code == 2
    assert "required: script" in capsys.readouterr().err


def test_validation_completes_the_arguments(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text("{distributed_type: MULTI_GPU, mixed_precision: bf16, num_processes: 2}")
    args, config, from_file = _validate_launch_command(parsed("--config_file c.yaml --num_processes 1 train.py"))
    assert (args.num_processes, args.num_machines, args.mixed_precision) == (1, 1, "bf16")
    assert (args.use_cpu, args.multi_gpu, from_file) == (False, False, True)
    assert config is not None
    assert config.num_processes == 2
    args, config, from_file = _validate_launch_command(parsed("train.py"))
    assert (args.num_processes, args.multi_gpu, args.mixed_precision) == (2, True, "no")
    assert (config, from_file) == (None, False)


def test_validation_refuses_what_launch_refuses() -> None:
    with pytest.raises(ValueError, match="--cpu and --multi_gpu"):
        _validate_launch_command(parsed("--cpu --multi_gpu train.py"))


def test_a_dry_run_prints_the_plan_and_where_it_comes_from(capsys: pytest.CaptureFixture[str]) -> None:
    launch_command(parsed("--dry_run --mixed_precision bf16 --num_processes 1 train.py --api_key x"))
    shown = capsys.readouterr().out
    assert "train.py --api_key '***'" in shown
    assert "  ACCELERATE_MIXED_PRECISION=bf16\n" in shown
    assert shown.endswith("settings:\n  --mixed_precision bf16\n  --num_processes 1\n")


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("--num_processes 1 --role x train.py", "accelerate launch: --role x has no effect: one process has nobody"),
        ("--gpu_ids 1 train.py", "accelerate launch: starting 1 process on cuda"),
        ("--quiet --role x train.py", ""),
    ],
)
def test_what_is_told_before_the_start(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], line: str, told: str
) -> None:
    monkeypatch.setattr(SingleLauncher, "run", lambda self, plan: 0)
    monkeypatch.setattr(read, "find_hardware", lambda environ: Hardware("cuda", 1))
    launch_command(parsed(line))
    assert capsys.readouterr().err.startswith(told)


def test_the_module_runs_as_a_program(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["accelerate-launch", "nowhere.py"])
    with pytest.raises(SystemExit) as ended:
        launch.main()
    assert ended.value.code == 2
