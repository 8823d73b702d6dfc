"""A checkpoint that is being read: its files, its manifest, and how files are to be opened."""

from __future__ import annotations

import os
import re
import weakref
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from accelerate.checkpointing.layout import names_of
from accelerate.checkpointing.manifest import Manifest
from accelerate.checkpointing.objects import load_object
from accelerate.checkpointing.reading import copy_ahead
from accelerate.checkpointing.tensors import map_tensors_of
from accelerate.comm.tree import leaves, map_tensors

if TYPE_CHECKING:
    from accelerate.checkpointing.sharded import Shards

#: File systems of the machine itself, where a mapped file stays readable after it was deleted.
LOCAL_FILE_SYSTEMS = {"apfs", "btrfs", "ext2", "ext3", "ext4", "f2fs", "overlay", "tmpfs", "xfs", "zfs"}
ESCAPED = re.compile(r"\\([0-7]{3})")  #: how Linux writes a space in the name of a folder


class CheckpointError(RuntimeError):
    """A checkpoint is damaged, or doesn't fit what it is to be loaded into."""


class Source:
    """A checkpoint folder to restore from.

    Args:
        folder: the checkpoint.
        manifest: what it says it consists of; None for a folder of 1.15.
        load_kwargs: arguments of `torch.load` for what was written with `torch.save`.
        model_kwargs: arguments of `load_state_dict` of models.
        strict: whether everything has to be restored.
        threads: how many of them read.
    """

    def __init__(
        self,
        folder: Path,
        manifest: Manifest | None = None,
        load_kwargs: Mapping[str, Any] | None = None,
        model_kwargs: Mapping[str, Any] | None = None,
        strict: bool = True,
        threads: int = 1,
    ) -> None:
        self.folder = folder
        self.manifest = manifest
        self.load_kwargs = dict(load_kwargs or {})
        self.model_kwargs = dict(model_kwargs or {})
        self.strict = strict
        self.threads = threads
        self._opened: dict[str, Any] = {}
        self._shards: dict[str, Shards] = {}
        self._shapes: dict[str, dict[str, tuple[int, ...] | None]] = {}
        self._outlines: dict[str, dict[Any, Any]] = {}
        self._mapped: list[weakref.ref[torch.Tensor]] = []

    @property
    def world_size(self) -> int:
        """How many ranks wrote it."""
        return self.manifest.world_size if self.manifest is not None else len(names_of("rng", self.folder))

    def has(self, name: str) -> bool:
        """Return whether it has a file, or a folder of shards, of this name."""
        return self.has_file(name) or (self.folder / name / ".metadata").is_file()

    def has_file(self, name: str) -> bool:
        """Return whether it has a file of this name."""
        return (self.folder / name).is_file()

    def object(self, name: str) -> Any:
        """Return what was written with `torch.save`; opened once, its tensors mapped rather than read."""
        if name not in self._opened:
            self._opened[name] = load_object(
                self.folder / name, map_location="cpu", **{"mmap": True, **self.load_kwargs}
            )
        return self._opened[name]

    def tensors(self, name: str) -> dict[str, torch.Tensor]:
        """Return the tensors of a model's file, mapped rather than read."""
        if not name.endswith(".safetensors"):
            return self.object(name)
        if name not in self._opened:
            self._opened[name] = map_tensors_of(self.folder / name)
        return self._opened[name]

    def shards(self, name: str) -> Shards:
        """Return a folder of shards; what it says of itself is read once."""
        from accelerate.checkpointing.sharded import Shards  # only who reads such a folder pays for it

        if name not in self._shards:
            self._shards[name] = Shards(self.folder / name, self.threads)
        return self._shards[name]

    def shapes(self, name: str) -> dict[str, tuple[int, ...] | None]:
        """Return the shapes of the tensors in a folder of shards, from its metadata alone; looked up once."""
        if name not in self._shapes:
            self._shapes[name] = self.shards(name).shapes("model")
        return self._shapes[name]

    def outline(self, name: str) -> dict[Any, Any]:
        """Return what an optimizer's folder of shards holds, tensors without values; looked up once."""
        if name not in self._outlines:
            self._outlines[name] = self.shards(name).outline("optimizer", lambda path: path[0] == "param_groups")
        return self._outlines[name]

    def owned(self, state: Any) -> Any:
        """Return a state that may outlive the checkpoint.

        On a local disk a mapped file stays readable whatever happens to its name, and is copied page by page where it
        is written to; :meth:`close` begins with that. Over a network it can vanish while it is in use, so there it is
        copied at once.
        """
        if not is_local(self.folder):
            return map_tensors(torch.clone, state)
        self._mapped += [weakref.ref(each) for each in leaves(state) if isinstance(each, torch.Tensor)]
        return state

    def close(self) -> None:
        """Let go of the files, and have what is still mapped copied beside training, before it is written to."""
        self._opened.clear()
        copy_ahead(self._mapped)
        self._mapped = []


def is_local(folder: Path) -> bool:
    """Return whether `folder` lies on a file system of this machine."""
    path = os.path.realpath(folder)
    mounts = [mount for mount in _mounts() if _below(path, mount[0])]
    return bool(mounts) and max(mounts, key=lambda mount: len(mount[0]))[1] in LOCAL_FILE_SYSTEMS


@cache
def _mounts() -> list[tuple[str, str]]:
    """Return where file systems are mounted, and their kinds."""
    try:
        lines = Path("/proc/self/mounts").read_text(errors="surrogateescape").splitlines()
    except OSError:
        import psutil

        return [(partition.mountpoint, partition.fstype.lower()) for partition in psutil.disk_partitions(all=True)]
    return [
        (ESCAPED.sub(lambda found: chr(int(found[1], 8)), place), kind) for _, place, kind, *_ in map(str.split, lines)
    ]


def _below(path: str, mount: str) -> bool:
    return path == mount or path.startswith(mount.rstrip(os.sep) + os.sep)
