"""Reading folders of torch.distributed.checkpoint (DCP) without executing what they contain.

Such a folder describes itself in `.metadata`, which is a pickle, and holds what is no tensor as further pickles. torch
rebuilds whatever they name; here only plain data and the classes that DCP itself writes are. Tensors go from the file
into the memory that waits for them, where torch makes a tensor of its own first and copies it.
"""

from __future__ import annotations

import collections
import io
import os
import pickle
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint import FileSystemReader
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.planner import LoadItemType, LoadPlan, LoadPlanner, ReadItem
from torch.futures import Future

from accelerate.base.messages import message
from accelerate.checkpointing.objects import load_object
from accelerate.checkpointing.reading import Piece, can_take_bytes, read_pieces

METADATA = ".metadata"
HEAD = 1024  #: bytes at the beginning of a tensor that are read to see how it lies there

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
        threads: how many of them read from its files.
    """

    def __init__(self, path: str | os.PathLike[str], threads: int = 1) -> None:
        super().__init__(path)
        self.threads = threads
        self._metadata: Metadata | None = None
        self._layouts: dict[int, list[tuple[bytes, torch.Tensor]]] = {}

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

    @torch.no_grad()
    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        """Read what a plan asks for; what doesn't lie in the file as it does in its target is left to torch."""
        files: dict[str, Any] = {}
        left, found = list[ReadItem](), list[tuple[ReadItem, Piece]]()
        with ExitStack() as stack:
            for item in plan.items:
                path = self.storage_data[item.storage_index].relative_path
                if path not in files:
                    files[path] = stack.enter_context(open(Path(self.path, path), "rb", buffering=0))
                in_place = self._in_place(item, planner, files[path])
                if in_place is None:
                    left.append(item)
                else:
                    found.append((item, in_place))
            read_pieces((piece for _, piece in found), self.threads)
        for item, piece in found:
            planner.commit_tensor(item, piece.target)
        return super().read_data(replace(plan, items=left), planner)

    def _in_place(self, item: ReadItem, planner: LoadPlanner, file: Any) -> Piece | None:
        """Return how one tensor is read into its target, if its values lie there as they do in the file."""
        info = self.storage_data[item.storage_index]
        if item.type == LoadItemType.BYTE_IO or getattr(info, "transform_descriptors", None):
            return None
        whole = self._layout(file, info)
        begin = getattr(whole.untyped_storage(), "_checkpoint_offset", None)
        part = whole
        for dim, (start, length) in enumerate(zip(item.storage_offsets, item.lengths, strict=True)):
            part = part.narrow(dim, start, length)
        target = planner.resolve_tensor(item).detach()
        same = (part.shape, part.dtype, type(part)) == (target.shape, target.dtype, torch.Tensor)
        if begin is None or not (same and part.is_contiguous() and can_take_bytes(target)):
            return None
        start = info.offset + begin + part.storage_offset() * part.element_size()
        return Piece(item.storage_index.fqn, file, start, target)

    def _layout(self, file: Any, info: Any) -> torch.Tensor:
        """Return the tensor that lies at a place in a file, without its values.

        Most tensors are described in the same words, which are looked up instead of being read anew.
        """
        file.seek(info.offset)
        head = file.read(min(HEAD, info.length))
        known = self._layouts.setdefault(info.length, [])
        for words, whole in known:
            if head.startswith(words):
                return whole
        whole = torch.load(self._slice_file(file, info), map_location="meta", weights_only=True)
        begin = getattr(whole.untyped_storage(), "_checkpoint_offset", None)
        if begin is not None and begin <= len(head):
            known.append((head[:begin], whole))
        return whole


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
        name, loaded = read_item.dest_index.fqn, load_object(value)
        if not self.flatten_state_dict:
            self.state_dict[name] = loaded
            return
        *path, last = cast(tuple[Any, ...], self.mappings[name])
        place: Any = self.original_state_dict
        for part in path:
            place = place[part]
        place[last] = loaded
