"""A disk that is full and a folder that can't be written to: the error is said, and what was saved stays."""

from __future__ import annotations

import json
import multiprocessing
import os
import resource
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from accelerate.checkpointing import durable

NOBODY = 65534
pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="limits and permissions of POSIX")


def build(folder, limit=None):
    """Return an Accelerator, and a model of 40 kB with its optimizer."""
    from accelerate import Accelerator
    from accelerate.utils import ProjectConfiguration

    config = ProjectConfiguration(project_dir=folder, automatic_checkpoint_naming=True, total_limit=limit)
    accelerator = Accelerator(cpu=True, project_config=config)
    model = torch.nn.Linear(100, 100)
    model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters()))
    accelerator.backward(model(torch.ones(1, 100)).sum())
    optimizer.step()
    return accelerator, model


def tree(folder):
    return {path.relative_to(folder): path.read_bytes() for path in Path(folder).rglob("*") if path.is_file()}


def apart(function, *args):
    """Run `function` in a process of its own, whose limits and rights it may change, and return what it returned."""
    context = multiprocessing.get_context("forkserver")
    mine, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_send, args=(theirs, function, *args))
    process.start()
    theirs.close()
    try:
        assert mine.poll(120)
        return mine.recv()
    finally:
        process.kill()
        process.join()


def _send(pipe, function, *args):
    pipe.send(function(*args))


def refusal_of_saving(accelerator, blocking):
    """Save, and return what was said against it, None for nothing."""
    try:
        accelerator.save_state(blocking=blocking)
        accelerator.wait_for_checkpoint()
    except (OSError, RuntimeError) as error:
        return f"{type(error).__name__}: {error}"
    return None


def save_with_little_room(folder, blocking):
    accelerator, _ = build(folder, limit=1)
    accelerator.save_state()
    before = tree(folder)
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, hard))  # the system takes 10 kB of a file, and no more
    said = refusal_of_saving(accelerator, blocking)
    same = tree(folder) == before
    resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    accelerator.save_state()
    return said, same, sorted(path.name for path in (Path(folder) / "checkpoints").iterdir())


@pytest.mark.parametrize("blocking", [True, False])
def test_when_the_system_takes_no_more_the_last_checkpoint_stays(tmp_path, blocking):
    said, same, names = apart(save_with_little_room, str(tmp_path), blocking)
    assert "File too large" in said
    assert same
    assert names == ["checkpoint_1" if blocking else "checkpoint_2"]


@pytest.mark.parametrize("allowed", [0, 1, 500, 30_000, 90_000, 130_000])
def test_a_disk_that_fills_up_while_saving_leaves_the_last_checkpoint(tmp_path, monkeypatch, allowed):
    accelerator, _ = build(tmp_path, limit=1)
    accelerator.save_state()
    before, left = tree(tmp_path), allowed
    original = durable.write_all

    def write_all(file, view):
        nonlocal left
        original(file, view[:left])
        left -= len(view[:left])
        if left == 0:
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(durable, "write_all", write_all)
    with pytest.raises(OSError, match="No space left on device"):
        accelerator.save_state()
    assert tree(tmp_path) == before
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["checkpoint_0"]
    monkeypatch.setattr(durable, "write_all", original)
    accelerator.save_state()
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["checkpoint_1"]


def on_a_disk_of(kilobytes, folder, *command):
    """Run a command with an own file system of that size mounted at `folder`, seen by this command alone."""
    mount = f"mount -t tmpfs -o size={kilobytes}k tmpfs {shlex.quote(str(folder))} && exec {shlex.join(command)}"
    return subprocess.run(["unshare", "-Urm", "sh", "-c", mount], capture_output=True, text=True, timeout=120)


@pytest.mark.parametrize("room", [0, 60_000])
@pytest.mark.parametrize("way", ["blocking", "in the background"])
def test_on_a_disk_that_is_full_the_last_checkpoint_stays(tmp_path, room, way):
    try:
        on_a_disk_of(64, tmp_path, "true").check_returncode()
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"this machine allows no file system of one's own: {error}")
    run = on_a_disk_of(600, tmp_path, sys.executable, "-m", "tests.faults.full_disk", str(tmp_path), str(room), way)
    assert run.returncode == 0, run.stderr
    seen = json.loads(run.stdout.splitlines()[-1])
    assert "No space left on device" in seen["said"]
    assert seen["same"]
    assert seen["loads"]
    assert len(seen["names"]) == 1


def save_without_rights(folder):
    accelerator, model = build(folder)
    accelerator.load_state()
    before = model.weight.sum().item()
    is_root = os.geteuid() == 0
    if is_root:
        os.seteuid(NOBODY)  # the rights of root know no read-only folders
    try:
        accelerator.save_state()
        said = None
    except OSError as error:
        said = type(error).__name__
    if is_root:
        os.seteuid(0)
    accelerator.load_state()
    return said, model.weight.sum().item() == before


def test_a_folder_that_cannot_be_written_to_can_still_be_loaded_from(tmp_path):
    accelerator, _ = build(tmp_path)
    accelerator.save_state()
    before = tree(tmp_path)
    folders = [tmp_path / "checkpoints", tmp_path, tmp_path.parent, tmp_path.parent.parent]
    modes = [folder.stat().st_mode for folder in folders]
    try:
        for folder in folders:
            folder.chmod(0o555)
        assert apart(save_without_rights, str(tmp_path)) == ("PermissionError", True)
    finally:
        for folder, mode in zip(folders, modes, strict=True):
            folder.chmod(mode)
    assert tree(tmp_path) == before


def test_an_old_checkpoint_that_cannot_be_removed_does_not_spoil_the_new_one(tmp_path, monkeypatch, caplog):
    from accelerate.checkpointing import folder

    accelerator, _ = build(tmp_path, limit=1)
    accelerator.save_state()

    def refuse(path):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(folder, "remove_folder", refuse)
    accelerator.save_state()
    assert "checkpoint_1 is saved, but older checkpoints could not be removed" in caplog.text
    visible = [path.name for path in (tmp_path / "checkpoints").iterdir() if not path.name.startswith(".")]
    assert visible == ["checkpoint_1"]
