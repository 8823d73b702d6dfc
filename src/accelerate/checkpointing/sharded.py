"""Folders of torch.distributed.checkpoint: each rank writes the shards it holds, and any number of ranks reads them.

Keys are paths: ("model", "layers.0.weight"), ("optimizer", "state", "layers.0.weight", "exp_avg"). Reading needs no
other rank: each one finds out from the folder's metadata which parts of which files it wants.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeAlias

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.filesystem import FileSystem
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata

from accelerate.checkpointing.durable import FileFact, Sink, flush_folder
from accelerate.checkpointing.metadata import SafePlanner, SafeReader, paths_in
from accelerate.checkpointing.objects import without_crc32
from accelerate.comm.collectives import Collectives

Key: TypeAlias = tuple[Any, ...]


def write_shards(folder: Path, state: Mapping[str, Any], collectives: Collectives) -> dict[str, FileFact]:
    """Write nested data whose tensors are (partly) sharded; all ranks take part.

    Returns:
        what the files look like that this rank has written, by name with the folder's.
    """
    group = getattr(collectives, "group", None)
    writer = dcp.FileSystemWriter(folder, sync_files=False)  # the sinks bring files to the disk
    writer.fs = files = SummedFiles()
    with _alone(), without_crc32():
        dcp.save(dict(state), storage_writer=writer, process_group=group, no_dist=not dist.is_initialized())
    flush_folder(folder)
    return {f"{folder.name}/{name}": fact for name, fact in files.facts.items()}


class SummedFiles(FileSystem):
    """Where DCP writes its files, each into a sink; `facts` says what they look like, by name."""

    def __init__(self) -> None:
        self.facts: dict[str, FileFact] = {}

    @contextmanager
    def create_stream(self, path: str | os.PathLike[str], mode: str) -> Iterator[Any]:
        """Open a new file for writing."""
        assert mode == "wb", "a folder of shards is written once"
        sink = ShardSink(Path(path))
        try:
            yield sink
            self.facts[sink.path.name] = sink.finish()
        finally:
            super(ShardSink, sink).close()

    def rename(self, path: str | os.PathLike[str], new_path: str | os.PathLike[str]) -> None:
        """Give a file another name, also in `facts`."""
        super().rename(path, new_path)
        self.facts[Path(new_path).name] = self.facts.pop(Path(path).name)


class ShardSink(Sink):
    """A sink as DCP uses files: it asks where it is, and closes what is not finished yet."""

    def close(self) -> None:
        """Do nothing: whoever opened it finishes it."""


def read_metadata(folder: Path) -> Metadata:
    """Return what a folder of shards says of itself."""
    return SafeReader(folder).read_metadata()


def shapes_in(folder: Path, top: str) -> dict[str, tuple[int, ...] | None]:
    """Return the shapes of the tensors below `top`, by name; None for what is no tensor."""
    metadata = read_metadata(folder)
    found = {key: path for key, path in paths_in(metadata).items() if path[0] == top}
    return {".".join(map(str, path[1:])): _shape(metadata, key) for key, path in found.items()}


def _shape(metadata: Metadata, key: str) -> tuple[int, ...] | None:
    entry = metadata.state_dict_metadata[key]
    return tuple(entry.size) if isinstance(entry, TensorStorageMetadata) else None


def read_shards(folder: Path, choose: Callable[[Key, Any], Any]) -> dict[Any, Any]:
    """Return nested data that a folder holds.

    Args:
        folder: the folder.
        choose: is asked about each path with the size and dtype of its tensor (a `TensorStorageMetadata`, or None for
            what is no tensor). Returns the tensor to read into (a DTensor takes its shards only), `UNWANTED`, or
            anything else for what is no tensor.
    """
    reader = SafeReader(folder)
    metadata = reader.read_metadata()
    paths, wanted = paths_in(metadata), {}
    for key, entry in metadata.state_dict_metadata.items():
        target = choose(paths[key], entry if isinstance(entry, TensorStorageMetadata) else None)
        if target is not UNWANTED:
            wanted[key] = target
    with _alone():
        dcp.load(wanted, storage_reader=reader, planner=SafePlanner(), no_dist=True)
    return nested((paths[key], value) for key, value in wanted.items())


def outline(folder: Path, top: str, read: Callable[[Key], bool]) -> dict[Any, Any]:
    """Return what a folder holds below `top`, tensors without values; what is no tensor only where `read` says so."""
    metadata = read_metadata(folder)
    found = [
        (path[1:], empty(entry, "meta") if isinstance(entry, TensorStorageMetadata) else None)
        for path, entry in ((path, metadata.state_dict_metadata[key]) for key, path in paths_in(metadata).items())
        if path[0] == top
    ]
    values = read_shards(folder, lambda path, entry: None if entry is None and read(path[1:]) else UNWANTED)
    return {**nested(found), **values.get(top, {})}


@contextmanager
def _alone() -> Iterator[None]:
    """Don't let torch remark on a rank that reads for itself."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*load in a single process|.*save in a single process")
        yield


#: What the chooser of `read_shards` returns for what is left unread.
UNWANTED: Any = object()


def read_whole(folder: Path) -> dict[Any, Any]:
    """Return everything that a folder holds, in host memory."""
    return read_shards(folder, lambda path, entry: empty(entry))


def empty(entry: TensorStorageMetadata | None, device: torch.device | str = "cpu") -> torch.Tensor | None:
    """Return a tensor to read into; None for what is no tensor."""
    return None if entry is None else torch.empty(entry.size, dtype=entry.properties.dtype, device=device)


def nested(items: Iterable[tuple[Key, Any]]) -> dict[Any, Any]:
    """Return nested dictionaries, and lists where the parts of paths are numbers."""
    tree: dict[Any, Any] = {}
    for path, value in items:
        place = tree
        for part in path[:-1]:
            place = place.setdefault(part, {})
        place[path[-1]] = value
    return {key: _with_lists(value) for key, value in tree.items()}


def _with_lists(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    if value and all(isinstance(key, int) for key in value):
        return [_with_lists(value[key]) for key in sorted(value)]
    return {key: _with_lists(each) for key, each in value.items()}
