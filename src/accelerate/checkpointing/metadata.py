"""Reading folders of torch.distributed.checkpoint (DCP) without executing what they contain.

Such a folder describes itself in `.metadata`, which is a pickle, and holds what is no tensor as further pickles. torch
rebuilds whatever they name; here only plain data and the classes that DCP itself writes are.
"""

from __future__ import annotations

import collections
import io
import os
import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint import FileSystemReader
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.planner import ReadItem

from accelerate.base.messages import message
from accelerate.checkpointing.objects import load_object

METADATA = ".metadata"

#: Modules whose classes a `.metadata` file is made of.
DCP_MODULES = ("torch.distributed.checkpoint.metadata", "torch.distributed.checkpoint.filesystem")
#: The other things that it refers to.
ALLOWED = {
    ("collections", "OrderedDict"): collections.OrderedDict,
    ("pathlib", "PosixPath"): Path,
    ("pathlib", "WindowsPath"): Path,
    ("pathlib._local", "PosixPath"): Path,
    ("torch", "Size"): torch.Size,
    ("torch", "device"): torch.device,
    ("torch.serialization", "_get_layout"): torch.serialization._get_layout,
}


class MetadataUnpickler(pickle.Unpickler):
    """Rebuilds the metadata of DCP, and nothing else."""

    def find_class(self, module: str, name: str) -> Any:
        """Return what a pickle refers to.

        Raises:
            pickle.UnpicklingError: it has no business in there.
        """
        if (module, name) in ALLOWED:
            return ALLOWED[module, name]
        known = module in (*DCP_MODULES, "torch") and "." not in name
        found = super().find_class(module, name) if known else None
        if isinstance(found, torch.dtype) or (isinstance(found, type) and found.__module__ in DCP_MODULES):
            return found
        raise pickle.UnpicklingError(
            message(
                given=f"a {METADATA} file that refers to {module}.{name}",
                why="rebuilding it would execute something that torch.distributed.checkpoint doesn't write",
                allowed="the metadata classes of torch.distributed.checkpoint",
                do="don't load this folder unless you know where it comes from",
            )
        )


class SafeReader(FileSystemReader):
    """Reads a DCP folder; its metadata is read once, and executes nothing.

    Args:
        path: the folder.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        super().__init__(path)
        self._metadata: Metadata | None = None

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        """Return what the folder says of itself.

        Raises:
            pickle.UnpicklingError: it would execute something.
        """
        if self._metadata is None:
            text = Path(self._get_metadata_path(kwargs.get("rank"))).read_bytes()
            self._metadata = MetadataUnpickler(io.BytesIO(text)).load()
        if self._metadata.storage_meta is not None:
            self._metadata.storage_meta.load_id = self.load_id
        return self._metadata


def is_sharded_folder(folder: Path) -> bool:
    """Return whether torch.distributed.checkpoint wrote `folder`."""
    return (folder / METADATA).is_file()


def paths_in(metadata: Metadata) -> dict[str, tuple[Any, ...]]:
    """Return, for every key of a DCP folder, its path in the nested state that was saved."""
    known = metadata.planner_data or {}
    return {key: tuple(known.get(key) or key.split(".", 1)) for key in metadata.state_dict_metadata}


@contextmanager
def plain_errors() -> Iterator[None]:
    """Raise what went wrong in place of DCP's `CheckpointException`, which is no `Exception` and hides it."""
    try:
        yield
    except dcp.api.CheckpointException as error:
        cause, _ = next(iter(error.failures.values()))
        raise cause from error


class SafePlanner(DefaultLoadPlanner):
    """Reads what is no tensor as plain data."""

    def load_bytes(self, read_item: ReadItem, value: io.BytesIO) -> None:
        """Take up one object that is no tensor.

        Raises:
            pickle.UnpicklingError: it would execute something.
        """
        loaded = io.BytesIO()
        torch.save(load_object(value), loaded)  # what came through can't do any harm in there
        loaded.seek(0)
        super().load_bytes(read_item, loaded)
