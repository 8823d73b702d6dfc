"""Real launches of small scripts, for the tests of this folder."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

LIMIT = 60
CLI = [sys.executable, "-m", "accelerate.commands.accelerate_cli", "launch"]

Launch = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def launch(tmp_path: Path) -> Launch:
    """Start a script, given as text, through the command line, in a folder of its own."""
    env = {name: value for name, value in os.environ.items() if not name.startswith(("ACCELERATE_", "TORCHELASTIC_"))}
    env |= {
        "HF_HOME": str(tmp_path / "hf"),
        "CUDA_VISIBLE_DEVICES": "",
        "OMP_NUM_THREADS": "1",
        "TMPDIR": str(tmp_path),
    }

    def start(script: str, *flags: str, arguments: tuple[str, ...] = ()) -> subprocess.Popen[str]:
        (tmp_path / "script.py").write_text(script)
        return subprocess.Popen(
            [*CLI, *flags, "script.py", *arguments],
            cwd=tmp_path,
            env=env,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    return start


def end(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    """Wait for a launch and return its exit code and what it wrote; it has to leave no process behind."""
    seen = {child.pid: child for child in psutil.Process(process.pid).children(recursive=True)}
    try:
        out, err = process.communicate(timeout=LIMIT)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        raise
    left = [child.pid for child in seen.values() if child.is_running() and child.status() != psutil.STATUS_ZOMBIE]
    assert left == []
    return process.returncode, out, err
