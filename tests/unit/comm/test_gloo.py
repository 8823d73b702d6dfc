"""The checks of every implementation, in two real processes with gloo."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

CHECKS = Path(__file__).with_name("checks.py")


def test_two_gloo_processes(tmp_path):
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    commands = [
        [sys.executable, "-W", "error", str(CHECKS), str(rank), "2", str(tmp_path / "store"), "gloo", "cpu"]
        for rank in range(2)
    ]
    processes = [
        subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        for command in commands
    ]
    try:
        outputs = [process.communicate(timeout=120)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert [process.returncode for process in processes] == [0, 0], "\n".join(outputs)
    assert all("groups passed" in output for output in outputs)
