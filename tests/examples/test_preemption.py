"""The example of preemption does what its first lines promise, when a process of it is signalled."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "examples" / "preemption.py"
LIMIT = 240
LAUNCH = [
    *(sys.executable, "-m", "accelerate.commands.accelerate_cli", "launch"),
    *("--cpu", "--num_processes", "2", "--max_restarts", "1", str(SCRIPT), "--epochs", "2"),
]


def start(project: Path, pause: float) -> subprocess.Popen[str]:
    env = os.environ | {"OMP_NUM_THREADS": "1", "HF_HOME": str(project / "home"), "CUDA_VISIBLE_DEVICES": ""}
    command = [*LAUNCH, "--project", str(project), "--pause", str(pause)]
    return subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def end(process: subprocess.Popen[str]) -> str:
    """Return what a run wrote, which has to end well."""
    text, _ = process.communicate(timeout=LIMIT)
    assert process.returncode == 0, text
    return text


def result(text: str) -> str:
    return re.search(r"squared and added: (\S+)", text).group(1)


@pytest.mark.timeout(3 * LIMIT)
def test_a_process_that_is_signalled_changes_nothing_about_the_result(tmp_path: Path) -> None:
    undisturbed = end(start(tmp_path / "undisturbed", 0))
    process = start(tmp_path / "disturbed", 0.02)
    first = process.stdout.readline()
    second = process.stdout.readline()
    pid = int(re.search(r"Process 1 \((\d+)\) starts at the beginning", first + second).group(1))
    os.kill(pid, signal.SIGUSR1)
    text = end(process)
    assert len(re.findall(r"starts from batch \d+ of epoch 0 in checkpoint_0", text)) == 2, text
    assert "exit code 75" in text
    assert result(text) == result(undisturbed)
