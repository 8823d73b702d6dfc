"""A hang is told: where each process stands, and in which collective; a run that moves is left alone."""

from __future__ import annotations

import os
import signal
import time

import psutil
import pytest

from tests.launch.conftest import LIMIT

HANG = """
import time
import torch
from accelerate import Accelerator

accelerator = Accelerator(cpu=True)


def wait_for_a_file():
    time.sleep(600)


if accelerator.process_index == 0:
    accelerator.gather(torch.ones(1))
else:
    wait_for_a_file()
"""
MOVE = """
import time

for _ in range(30):
    time.sleep(0.05)
    sum(range(1000))
"""


def read_until(process, text: str) -> str:
    """Return what a launch writes to stderr up to a line with `text`."""
    until, seen = time.monotonic() + LIMIT, ""
    while text not in seen:
        if time.monotonic() > until or process.poll() is not None:
            pytest.fail(f"no {text!r} in what was written:\n{seen}")
        seen += process.stderr.readline()
    return seen


def test_a_hang_is_told_once_and_the_run_goes_on(launch):
    process = launch(HANG, "--cpu", "--num_processes", "2", "--watchdog", "2")
    try:
        seen = read_until(process, "rank 0 waits in all_gather_")  # the start may take longer than the limit, too
        seen += read_until(process, "time.sleep(600)")
        children = psutil.Process(process.pid).children(recursive=True)
        process.send_signal(signal.SIGINT)
        rest = process.communicate(timeout=LIMIT)[1]
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
    assert "accelerate launch: no process has moved for 2 s; the run goes on, Ctrl-C ends it\n  rank 0" in seen
    assert "\n  rank 1 waits outside of collectives\n" in seen
    assert "accelerator.gather(torch.ones(1))" in seen
    assert "in wait_for_a_file" in seen
    assert "no process has moved" not in rest
    assert not [child for child in children if child.is_running() and child.status() != psutil.STATUS_ZOMBIE]


def test_a_run_that_moves_is_left_alone(launch):
    process = launch(MOVE, "--cpu", "--watchdog", "0.4")
    _, err = process.communicate(timeout=LIMIT)
    assert process.returncode == 0
    assert "has moved" not in err
