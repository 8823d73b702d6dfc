"""Checkpoint folders: their names, the folder beside them that is written first, the newest one, the old ones.

A checkpoint is written into a hidden folder beside its final name and gets that name by a rename. Whatever happens
before leaves the hidden folder behind, which no reader takes for a checkpoint; the next save clears it away.
"""

from __future__ import annotations

import os
import re
import socket
from contextlib import suppress
from pathlib import Path

from accelerate.base.messages import message
from accelerate.checkpointing.durable import flush_folder, remove_folder, rename
from accelerate.checkpointing.layout import is_checkpoint_file
from accelerate.checkpointing.manifest import Manifest, read_manifest

CHECKPOINTS = "checkpoints"
PREFIX = "checkpoint_"
_NUMBER = re.compile(r"(\d+)$")
_LEFTOVER = re.compile(r"\.(?P<name>.+)\.(?P<what>unfinished|removed|replaced)-(?P<host>.+)-(?P<pid>\d+)-(?P<time>\d+)")


def numbered_folder(project_dir: str | os.PathLike[str] | None, iteration: int) -> Path:
    """Return the folder of automatic checkpoint number `iteration`.

    Raises:
        ValueError: there is no project folder; the checkpoint exists.
    """
    folder = checkpoints_folder(project_dir) / f"{PREFIX}{iteration}"
    if folder.exists():
        raise ValueError(
            message(
                given=f"checkpoint number {iteration}, which is to become {folder}",
                why="a checkpoint of this number exists, and automatic naming never overwrites one",
                allowed="a number that is not taken",
                do="resume from the newest one with accelerator.resume(), which goes on counting from there, or set "
                "ProjectConfiguration(iteration=...), or use another project_dir",
            )
        )
    return folder


def checkpoints_folder(project_dir: str | os.PathLike[str] | None) -> Path:
    """Return the folder of the automatic checkpoints of a project.

    Raises:
        ValueError: there is no project folder.
    """
    if project_dir is None:
        raise ValueError(
            message(
                given="automatic_checkpoint_naming=True without project_dir",
                why="automatic checkpoints go into the folder of the project",
                allowed="a folder",
                do="pass project_dir to ProjectConfiguration or to Accelerator",
            )
        )
    return Path(project_dir) / CHECKPOINTS


def number_of(folder: Path) -> int | None:
    """Return the number that the name of a folder ends with, None when it ends otherwise."""
    found = _NUMBER.search(folder.name)
    return None if found is None else int(found.group(1))


def numbered_below(root: Path) -> list[Path]:
    """Return the folders in `root` whose names end with a number, the greatest first; hidden ones are none."""
    if not root.is_dir():
        return []
    folders = [path for path in root.iterdir() if path.is_dir() and not path.name.startswith(".")]
    numbered = [(number, path) for path in folders if (number := number_of(path)) is not None]
    return [path for _, path in sorted(numbered, reverse=True)]


def unfinished(folder: Path) -> Path:
    """Return the hidden folder in which `folder` is to be written by this process and its peers."""
    return _leftover(folder, "unfinished")


def _leftover(folder: Path, what: str) -> Path:
    """Return a hidden name beside `folder` that tells which process it belongs to."""
    import psutil

    began = int(psutil.Process().create_time())
    return folder.with_name(f".{folder.name}.{what}-{socket.gethostname()}-{os.getpid()}-{began}")


def commit(staged: Path, folder: Path) -> None:
    """Give a complete folder its final name; what stood under that name before is gone only afterwards.

    Files in the folder before that are no part of a checkpoint are kept.
    """
    flush_folder(staged)
    if not folder.exists():
        rename(staged, folder)
        return
    old = _leftover(folder, "replaced")
    rename(folder, old)
    rename(staged, folder)
    _dissolve(old, folder)


def _dissolve(old: Path, folder: Path) -> None:
    """Remove a checkpoint that `folder` has replaced; what is no part of it moves over."""
    manifest, _ = manifest_or_problem(old)
    listed = set() if manifest is None else {Path(name).parts[0] for name in manifest.files}
    for path in list(old.iterdir()):
        if path.name not in listed and not is_checkpoint_file(path.name) and not (folder / path.name).exists():
            os.replace(path, folder / path.name)
    remove_folder(old)


def rotate(root: Path, limit: int | None) -> list[Path]:
    """Remove the automatic checkpoints of lowest number until `limit` are left, and return them.

    Each first gets a hidden name, so that none can be taken for a checkpoint while it is being removed.
    """
    if limit is None:
        return []
    automatic = [path for path in numbered_below(root) if path.name == f"{PREFIX}{number_of(path)}"]
    removed = automatic[max(limit, 1) :]
    for folder in reversed(removed):
        hidden = _leftover(folder, "removed")
        rename(folder, hidden)
        remove_folder(hidden)
    return removed


def clear_leftovers(folder: Path) -> None:
    """Tidy up what dead processes have left behind beside `folder`.

    A folder that was about to be replaced gets its name back. On this machine it is known which processes live; what
    another machine left is looked at once its checkpoint is loaded or written again.
    """
    if not folder.parent.is_dir():
        return
    for path in sorted(folder.parent.iterdir()):
        found = _LEFTOVER.fullmatch(path.name)
        if found and _is_abandoned(found, folder):
            with suppress(FileNotFoundError):  # somebody else tidies up too
                _settle(path, path.with_name(found["name"]), found["what"])


def _settle(leftover: Path, folder: Path, what: str) -> None:
    if what != "replaced":
        remove_folder(leftover)
    elif folder.exists():
        _dissolve(leftover, folder)
    else:
        rename(leftover, folder)


def _is_abandoned(leftover: re.Match[str], folder: Path) -> bool:
    pid, began = int(leftover["pid"]), int(leftover["time"])
    if leftover["host"] != socket.gethostname():
        return leftover["name"] == folder.name
    if pid == os.getpid():
        return False
    import psutil

    try:
        return int(psutil.Process(pid).create_time()) != began
    except psutil.Error:
        return True


def manifest_or_problem(folder: Path) -> tuple[Manifest | None, list[str]]:
    """Return the manifest of a checkpoint, and what is wrong with it."""
    try:
        return read_manifest(folder), []
    except ValueError as error:
        return None, [str(error)]
