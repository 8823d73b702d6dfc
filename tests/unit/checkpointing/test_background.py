"""Saving while training goes on: a snapshot that training can't reach, errors that surface, an end that waits."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import threading

import pytest
import torch

from accelerate.checkpointing import durable, records
from accelerate.checkpointing.background import step_aside


@pytest.fixture
def held(monkeypatch):
    """Hold the writer before its first file until the event is set."""
    gate = threading.Event()
    original = records.Sink

    def waiting(path):
        assert gate.wait(60)
        return original(path)

    monkeypatch.setattr(records, "Sink", waiting)
    yield gate
    gate.set()


def test_what_is_written_is_the_state_at_the_call(build, tmp_path, held):
    run = build()
    weight = run.models[0].weight.detach().clone()
    moments = [state["exp_avg"].clone() for state in run.optimizers[0].state.values()]
    torch.manual_seed(5)
    folder = run.accelerator.save_state(tmp_path / "c", blocking=False)
    drawn = torch.rand(1)
    assert not folder.exists()
    run.counters[0].count = 99
    run.accelerator.backward(run.models[0](torch.ones(4, 3)).sum())
    run.optimizers[0].step()
    run.schedulers[0].step()
    held.set()
    run.accelerator.wait_for_checkpoint()
    other = build()
    other.accelerator.load_state(folder)
    assert torch.equal(other.models[0].weight, weight)
    assert all(map(torch.equal, (s["exp_avg"] for s in other.optimizers[0].state.values()), moments))
    assert other.counters[0].count == 1
    assert other.schedulers[0].get_last_lr() == [0.1]
    assert torch.equal(torch.rand(1), drawn)


def test_the_next_save_waits_for_the_last(build, tmp_path, held):
    run = build(tmp_path)
    run.accelerator.save_state(blocking=False)
    threading.Timer(0.2, held.set).start()
    assert run.accelerator.save_state().name == "checkpoint_1"
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == ["checkpoint_0", "checkpoint_1"]


def test_the_project_can_ask_for_it(build, tmp_path, held):
    run = build(tmp_path)
    run.accelerator.project_configuration.blocking_save = False
    assert not run.accelerator.save_state().exists()
    held.set()
    run.accelerator.end_training()
    assert (tmp_path / "checkpoints" / "checkpoint_0" / "manifest.json").exists()


CALLS = {
    "wait_for_checkpoint": lambda accelerator, folder: accelerator.wait_for_checkpoint(),
    "save_state": lambda accelerator, folder: accelerator.save_state(folder),
    "load_state": lambda accelerator, folder: accelerator.load_state(folder),
    "resume": lambda accelerator, folder: accelerator.resume(folder),
    "end_training": lambda accelerator, folder: accelerator.end_training(),
    "free_memory": lambda accelerator, folder: accelerator.free_memory(),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS.keys())
def test_what_went_wrong_is_raised_by_the_next_call(build, tmp_path, monkeypatch, call):
    run = build()

    def full(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(durable, "flush_file", full)
    run.accelerator.save_state(tmp_path / "c", blocking=False)
    with pytest.raises(RuntimeError, match="No space left on device") as error:
        call(run.accelerator, tmp_path / "d")
    assert isinstance(error.value.__cause__, OSError)
    assert list(tmp_path.iterdir()) == []
    run.accelerator.wait_for_checkpoint()  # it has been said, and is over


def test_the_memory_of_the_snapshot_is_used_again(build, tmp_path):
    run = build(tmp_path)
    background = run.accelerator._background
    first = background.snapshot(run.models[0].state_dict())["weight"].data_ptr()
    second = background.snapshot(run.models[0].state_dict())["weight"].data_ptr()
    assert first == second != run.models[0].weight.data_ptr()
    run.accelerator.free_memory()
    assert background._stager is None


SCRIPT = """
    import sys, time
    import torch
    from accelerate import Accelerator
    from accelerate.checkpointing import durable, records

    slow = records.Sink.write
    def write(self, data):
        time.sleep(0.2)
        if "{what}" == "fail":
            raise OSError("no space left on device")
        return slow(self, data)
    records.Sink.write = write
    import atexit
    accelerator = Accelerator(cpu=True)
    atexit.register(print, "others were heard")
    accelerator.prepare(torch.nn.Linear(2, 2))
    accelerator.save_state({folder!r}, blocking=False)
    if "{what}" == "raise":
        raise SystemExit(3)
"""


@pytest.mark.parametrize(
    ("what", "code", "there"), [("finish", 0, True), ("raise", 3, True), ("fail", 1, False)], ids=str
)
def test_a_process_ends_with_its_checkpoint_or_with_an_error(tmp_path, what, code, there):
    script = textwrap.dedent(SCRIPT).format(what=what, folder=str(tmp_path / "c"))
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    assert done.returncode == code, done.stderr
    assert (tmp_path / "c" / "manifest.json").exists() is there
    assert "others were heard" in done.stdout
    assert ("no space left on device" in done.stderr) is not there


def test_a_torch_without_a_stager_is_named(build, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch.distributed.checkpoint.staging", None)
    with pytest.raises(ImportError, match="torch 2.9 or later for blocking=False"):
        build().accelerator.save_state(tmp_path / "c", blocking=False)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this system doesn't place threads on cores")
def test_the_writer_stays_off_the_core_of_training():
    cores, found = os.sched_getaffinity(0), []

    def write(other):
        step_aside(other)
        found.extend([os.sched_getaffinity(0), os.getpriority(os.PRIO_PROCESS, threading.get_native_id())])

    thread = threading.Thread(target=write, args=(threading.get_native_id(),))
    thread.start()
    thread.join()
    assert found[0] == cores if len(cores) == 1 else len(cores - found[0]) == 1
    assert found[1] >= 10
    assert os.sched_getaffinity(0) == cores
