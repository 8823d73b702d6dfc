"""The self test of `accelerate test`, really run: it passes where all is well, and says what is wrong otherwise."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from accelerate.commands.test import SUCCESS
from accelerate.test_utils.scripts.test_script import CHECKS

CLI = [sys.executable, "-m", "accelerate.commands.accelerate_cli"]


def run(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run the command line, without a config file and without accelerators."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("ACCELERATE_")}
    env |= {"HF_HOME": str(folder), "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    return subprocess.run([*CLI, *words], env=env, cwd=folder, capture_output=True, text=True, timeout=240, check=False)


@pytest.mark.parametrize(
    ("flags", "title"),
    [
        (["--cpu"], "Testing NO with 1 process(es) on cpu, mixed precision no"),
        (
            ["--cpu", "--num_processes", "2", "--mixed_precision", "bf16"],
            "Testing MULTI_CPU with 2 process(es) on cpu, mixed precision bf16",
        ),
    ],
)
def test_every_check_is_reported(tmp_path: Path, flags: list[str], title: str) -> None:
    done = run(tmp_path, "test", *flags)
    lines = done.stdout.splitlines()
    assert (done.returncode, lines[0], lines[-1]) == (0, title, SUCCESS), done.stdout + done.stderr
    assert [line.split(":")[0] for line in lines[1:-1]] == [f"ok      {name}" for name in CHECKS]


def test_a_check_that_fails_ends_the_run(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text(
        "from accelerate.test_utils.scripts import test_script\n"
        "test_script.expect(True, 'what is true is fine')\n"
        "def wrong(accelerator): test_script.expect(accelerator.is_main_process, 'not the main process')\n"
        "test_script.CHECKS = {'a wrong one': wrong, **test_script.CHECKS}\n"
        "test_script.main()\n"
    )
    done = run(tmp_path, "launch", "--cpu", "--num_processes", "2", "broken.py")
    assert done.returncode == 1
    assert "FAILED  a wrong one, on process 1: not the main process" in done.stdout
    assert "rank 1 of 2" in done.stderr.splitlines()[-1]
