"""The manifest of a checkpoint: what it consists of, so that a reader knows whether it has all of it.

`manifest.json` is written last, inside the folder that is then renamed. It lists every file with its size and
checksum, and who wrote it: world size, versions, the position of training. It carries a checksum of itself.
"""

from __future__ import annotations

import json
import platform
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from datetime import datetime, timezone
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import Any

import numpy
import torch

from accelerate.base.messages import message
from accelerate.base.versions import installed
from accelerate.checkpointing.durable import Checksum, FileFact, Sink
from accelerate.checkpointing.layout import MANIFEST, inside
from accelerate.checkpointing.reading import facts_of

FORMAT = 1


@dataclass(frozen=True)
class Manifest:
    """What a checkpoint consists of and where it comes from."""

    world_size: int
    files: dict[str, FileFact]
    #: How many files of each kind belong to it, in the words of `Record.part`.
    parts: dict[str, int] = field(default_factory=dict)
    #: Where training stood, for people and for other tools; what is restored lies in the files.
    position: dict[str, Any] = field(default_factory=dict)
    #: The names of the parameters of each optimizer, group by group (None: a parameter of no prepared model).
    parameters: list[list[list[str | None]]] = field(default_factory=list)
    versions: dict[str, str] = field(default_factory=dict)
    created: str = ""
    format: int = FORMAT

    def write(self, folder: Path) -> None:
        """Write the manifest into `folder`, down to the disk."""
        sink = Sink(folder / MANIFEST)
        try:
            sink.write(_text(json.loads(json.dumps(asdict(self)))))
            sink.finish()
        finally:
            sink.close()


def versions() -> dict[str, str]:
    """Return the versions that a manifest records."""
    try:
        own = str(installed("accelerate"))
    except PackageNotFoundError:  # run from a source tree
        own = "unknown"
    return {
        "accelerate": own,
        "torch": torch.__version__,
        "numpy": numpy.__version__,
        "python": platform.python_version(),
    }


def now() -> str:
    """Return the time as manifests record it: UTC, to the second."""
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


def read_manifest(folder: Path) -> Manifest | None:
    """Return the manifest of a checkpoint; None when it has none.

    Raises:
        ValueError: it is damaged, names files outside the folder, or was written by a later release.
    """
    path = folder / MANIFEST
    if not path.exists():
        return None
    try:
        text = path.read_bytes()
        body = json.loads(text)["manifest"]
        intact = _text(body) == text
        known = int(body["format"]) <= FORMAT
    except (ValueError, KeyError, TypeError):  # ValueError: not JSON, or not UTF-8
        intact, known, body = False, True, {}
    if not intact:
        raise ValueError(f"{MANIFEST} is damaged")
    if not known:
        raise ValueError(
            message(
                given=f"{path} of format {body['format']}",
                why=f"this release reads formats up to {FORMAT}",
                allowed="checkpoints of this release and of earlier ones",
                do="load it with the release that wrote it, or a later one",
            )
        )
    manifest = Manifest(**{**body, "files": {name: FileFact(**fact) for name, fact in body["files"].items()}})
    for name in manifest.files:
        inside(folder, name)
    return manifest


def problems_of_files(
    folder: Path, files: Mapping[str, FileFact], names: Iterable[str], thorough: bool, threads: int = 1
) -> list[str]:
    """Return what is wrong with some files of a checkpoint, a line each.

    Args:
        folder: the checkpoint.
        files: what its files have to look like.
        names: which of them to look at.
        thorough: read them and compare checksums; otherwise only their sizes.
        threads: how many read at a time.
    """
    problems, whole = [], {}
    for name in names:
        path, fact = inside(folder, name), files[name]
        if not path.is_file():
            problems.append(f"{name} is missing")
        elif (size := path.stat().st_size) != fact.size:
            problems.append(f"{name} has {size} bytes instead of {fact.size}")
        else:
            whole[name] = path
    found = facts_of(list(whole.values()), threads) if thorough else {}
    damaged = [name for name, path in whole.items() if path in found and found[path] != files[name]]
    return problems + [
        f"{name} is damaged: its checksum is not the one that was recorded when it was written" for name in damaged
    ]


def _text(body: Any) -> bytes:
    """Return the one spelling of a manifest, with the checksum of what it says."""
    checksum = Checksum()
    checksum.update(json.dumps(body, sort_keys=True, separators=(",", ":")).encode())
    return f"{json.dumps({'manifest': body, 'checksum': checksum.text()}, indent=1, sort_keys=True)}\n".encode()
