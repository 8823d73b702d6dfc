"""From the path of a checkpoint to the files that it consists of."""

from __future__ import annotations

import json
import os
from pathlib import Path

from accelerate.base.constants import SAFE_WEIGHTS_NAME, WEIGHTS_NAME
from accelerate.base.messages import message
from accelerate.big_modeling.checkpoint_file import CheckpointFile, open_checkpoint


def open_all(checkpoint: str | os.PathLike[str]) -> list[CheckpointFile]:
    """Return the files of a checkpoint, opened and checked.

    Args:
        checkpoint: a file with all weights, the index of a sharded checkpoint, or a folder with either.

    Raises:
        ValueError: there is no checkpoint, or several, or a file of it can't be read.
    """
    return [open_checkpoint(file) for file in find_files(checkpoint)]


def find_files(checkpoint: str | os.PathLike[str]) -> list[Path]:
    """Return the paths of the files of a checkpoint; see `open_all`."""
    path = Path(checkpoint)
    if path.is_file():
        return _shards(path) if path.suffix == ".json" else [path]
    if not path.is_dir():
        raise ValueError(
            message(
                given=f"checkpoint {os.fspath(checkpoint)!r}",
                why="there is no such file or folder",
                allowed="a file with all weights, the index of one that is split, or the folder of either",
                do="check the path; models on the hub have to be downloaded first",
            )
        )
    for name in (WEIGHTS_NAME, SAFE_WEIGHTS_NAME):
        if (path / name).is_file():
            return [path / name]
    return _shards(_only_index(path))


def _only_index(folder: Path) -> Path:
    """Return the one index in a folder."""
    found = sorted(folder.glob("*.index.json"))
    if len(found) == 1:
        return found[0]
    if not found:
        why = f"{folder} is not a folder containing a `.index.json` file or a {WEIGHTS_NAME} or a {SAFE_WEIGHTS_NAME}"
        raise ValueError(
            message(
                given=f"the folder {folder}",
                why=why + " file",
                allowed="a folder with one of these",
                do="name the file with the weights itself, if it has another name",
            )
        )
    raise ValueError(
        message(
            given=f"{folder} containing more than one `.index.json` file: {', '.join(each.name for each in found)}",
            why="which of these checkpoints is meant can't be told",
            allowed="a folder with one checkpoint",
            do="name the index to load, or delete the irrelevant ones",
        )
    )


def _shards(index: Path) -> list[Path]:
    """Return the files that an index names, each once."""
    content = json.loads(index.read_text(encoding="utf-8"))
    names = sorted(set(content.get("weight_map", content).values()))
    missing = [name for name in names if not (index.parent / name).is_file()]
    if missing:
        raise ValueError(
            message(
                given=f"the index {index}",
                why=f"it names files that are not there: {', '.join(missing)}",
                allowed="an index with all of its files beside it",
                do="download the missing files",
            )
        )
    return [index.parent / name for name in names]
