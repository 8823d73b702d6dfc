"""Checkpoint folders: names, commit, rotation, and what the dead have left behind."""

from __future__ import annotations

import os
import socket

import pytest

from accelerate.checkpointing import folder as folders
from accelerate.checkpointing.manifest import Manifest
from accelerate.checkpointing.reading import fact_of


def names(root):
    return sorted(path.name for path in root.iterdir())


def make(root, name, **files):
    """Make a checkpoint folder with files of given texts, and a manifest of them."""
    folder = root / name
    folder.mkdir(parents=True)
    for file, text in files.items():
        (folder / file).write_text(text)
    Manifest(1, {file: fact_of(folder / file) for file in files}).write(folder)
    return folder


def test_automatic_folders_are_numbered_and_never_overwritten(tmp_path):
    assert folders.numbered_folder(tmp_path, 3) == tmp_path / "checkpoints" / "checkpoint_3"
    make(tmp_path, "checkpoints/checkpoint_3")
    with pytest.raises(ValueError, match="checkpoint of this number exists"):
        folders.numbered_folder(tmp_path, 3)
    with pytest.raises(ValueError, match="without project_dir"):
        folders.numbered_folder(None, 0)


def test_the_greatest_number_comes_first_whatever_the_name(tmp_path):
    for name in ("checkpoint_9", "checkpoint_10", "step-200", ".checkpoint_99.unfinished-h-1-1", "best"):
        (tmp_path / name).mkdir()
    (tmp_path / "checkpoint_11").touch()
    assert [path.name for path in folders.numbered_below(tmp_path)] == ["step-200", "checkpoint_10", "checkpoint_9"]
    assert folders.numbered_below(tmp_path / "nowhere") == []


def test_a_commit_gives_the_folder_its_name(tmp_path):
    staged = make(tmp_path, ".a.unfinished", model="new")
    folders.commit(staged, tmp_path / "a")
    assert names(tmp_path) == ["a"]
    assert (tmp_path / "a" / "model").read_text() == "new"


def test_a_commit_replaces_a_checkpoint_and_keeps_other_peoples_files(tmp_path):
    old = make(tmp_path, "a", model="old", more="old")
    (old / "optimizer_1.bin").write_text("a checkpoint's file that no manifest lists")
    (old / "notes.txt").write_text("mine")
    (old / "logs").mkdir()
    (old / "logs" / "log").touch()
    folders.commit(make(tmp_path, ".a.unfinished", model="new"), tmp_path / "a")
    assert names(tmp_path) == ["a"]
    assert names(tmp_path / "a") == ["logs", "manifest.json", "model", "notes.txt"]
    assert (tmp_path / "a" / "model").read_text() == "new"


@pytest.mark.parametrize(
    ("limit", "left"),
    [(None, [0, 1, 2, 10]), (3, [1, 2, 10]), (1, [10]), (0, [10]), (9, [0, 1, 2, 10])],
)
def test_rotation_removes_the_lowest_numbers(tmp_path, limit, left):
    for number in (0, 1, 2, 10):
        make(tmp_path, f"checkpoint_{number}")
    make(tmp_path, "best-0")
    removed = folders.rotate(tmp_path, limit)
    assert names(tmp_path) == sorted(["best-0", *(f"checkpoint_{number}" for number in left)])
    assert len(removed) == 4 - len(left)


def leftover(root, what, *, host=None, pid=2**22 + 1, name="a", **files):
    return make(root, f".{name}.{what}-{host or socket.gethostname()}-{pid}-1700000000", **files)


def test_what_a_dead_process_was_writing_or_removing_is_removed(tmp_path):
    leftover(tmp_path, "unfinished", model="half")
    leftover(tmp_path, "removed", name="b")
    folders.clear_leftovers(tmp_path / "c")
    assert names(tmp_path) == []


def test_what_a_dead_process_was_replacing_gets_its_name_back(tmp_path):
    leftover(tmp_path, "replaced", model="old")
    leftover(tmp_path, "unfinished", model="half")
    folders.clear_leftovers(tmp_path / "a")
    assert names(tmp_path) == ["a"]
    assert (tmp_path / "a" / "model").read_text() == "old"


def test_what_a_dead_process_had_replaced_is_removed_and_other_files_move_over(tmp_path):
    make(tmp_path, "a", model="new")
    (leftover(tmp_path, "replaced", model="old") / "notes.txt").write_text("mine")
    folders.clear_leftovers(tmp_path / "a")
    assert names(tmp_path) == ["a"]
    assert names(tmp_path / "a") == ["manifest.json", "model", "notes.txt"]


def test_what_the_living_write_is_left_alone(tmp_path):
    (tmp_path / folders.unfinished(tmp_path / "a").name).mkdir()
    parent = os.getppid()
    import psutil

    began = int(psutil.Process(parent).create_time())
    (tmp_path / f".b.unfinished-{socket.gethostname()}-{parent}-{began}").mkdir()
    before = names(tmp_path)
    folders.clear_leftovers(tmp_path / "a")
    assert names(tmp_path) == before


def test_what_another_machine_writes_is_left_alone_until_it_is_in_the_way(tmp_path):
    leftover(tmp_path, "unfinished", host="elsewhere")
    folders.clear_leftovers(tmp_path / "b")
    assert len(names(tmp_path)) == 1
    folders.clear_leftovers(tmp_path / "a")
    assert names(tmp_path) == []
