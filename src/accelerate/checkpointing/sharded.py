"""Folders of torch.distributed.checkpoint: each rank writes the shards it holds, and any number of ranks reads them.

Keys are paths: ("model", "layers.0.weight"), ("optimizer", "state", "layers.0.weight", "exp_avg"). Reading needs no
other rank: each one finds out from the folder's metadata which parts of which files it wants.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any, TypeAlias

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.filesystem import FileSystem
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata
from torch.distributed.tensor import DTensor

from accelerate.checkpointing.durable import FileFact, Sink, flush_folder
from accelerate.checkpointing.metadata import SafePlanner, SafeReader, paths_in
from accelerate.checkpointing.objects import without_crc32
from accelerate.comm.collectives import Collectives

Key: TypeAlias = tuple[Any, ...]
#: Is asked about each path with the size and dtype of its tensor (None: it is no tensor). Returns the tensor to read
#: into (a DTensor takes its shards only), `UNWANTED`, or anything else for what is no tensor.
Chooser: TypeAlias = Callable[[Key, TensorStorageMetadata | None], Any]


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


class Shards:
    """A folder of shards that is being read; what it says of itself is read once.

    Args:
        folder: the folder.
        threads: how many of them read.
    """

    def __init__(self, folder: Path, threads: int = 1) -> None:
        self._reader = SafeReader(folder, threads)

    @cached_property
    def metadata(self) -> Metadata:
        """What the folder says of itself."""
        return self._reader.read_metadata()

    @cached_property
    def paths(self) -> dict[str, Key]:
        """The path of every key in the nested state that was saved."""
        return paths_in(self.metadata)

    def shapes(self, top: str) -> dict[str, tuple[int, ...] | None]:
        """Return the shapes of the tensors below `top`, by name; None for what is no tensor."""
        entries = {path: self._entry(key) for key, path in self.paths.items() if path[0] == top}
        return {name_of(path): None if entry is None else tuple(entry.size) for path, entry in entries.items()}

    def outline(self, top: str, read: Callable[[Key], bool]) -> dict[Any, Any]:
        """Return what lies below `top`, tensors without values; what is no tensor only where `read` says so."""
        found = [(path[1:], empty(self._entry(key), "meta")) for key, path in self.paths.items() if path[0] == top]
        values = self.read(lambda path, entry: None if entry is None and read(path[1:]) else UNWANTED)
        return {**nested(found), **values.get(top, {})}

    def read(self, choose: Chooser) -> dict[Any, Any]:
        """Return nested data that the folder holds, as far as `choose` wants it."""
        chosen = {key: choose(path, self._entry(key)) for key, path in self.paths.items()}
        wanted = {key: target for key, target in chosen.items() if target is not UNWANTED}
        with _alone():
            dcp.load(wanted, storage_reader=self._reader, planner=SafePlanner(), no_dist=True)
        return nested((self.paths[key], value) for key, value in wanted.items())

    def _entry(self, key: str) -> TensorStorageMetadata | None:
        entry = self.metadata.state_dict_metadata[key]
        return entry if isinstance(entry, TensorStorageMetadata) else None


def read_shards(folder: Path, choose: Chooser) -> dict[Any, Any]:
    """Return nested data that a folder holds, as far as `choose` wants it."""
    return Shards(folder).read(choose)


def name_of(path: Key) -> str:
    """Return the name that a tensor of a model has, out of its path."""
    return ".".join(map(str, path[1:]))


@contextmanager
def _alone() -> Iterator[None]:
    """Don't let torch remark on a rank that reads for itself."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*load in a single process|.*save in a single process")
        yield


#: What a chooser returns for what is left unread.
UNWANTED: Any = object()


def into_model(weights: Mapping[str, Any]) -> Chooser:
    """Return what has the values of a model read into `weights`, its state, where they fit; and nothing beyond it."""

    def choose(path: Key, entry: TensorStorageMetadata | None) -> Any:
        if name_of(path) not in weights:
            return UNWANTED
        own = weights[name_of(path)]
        fits = entry is not None and isinstance(own, torch.Tensor) and own.shape == entry.size and not own.is_meta
        return own if fits else empty(entry)

    return choose


def into_optimizer(optimizer: Any, parameters: Mapping[str, torch.Tensor]) -> Chooser:
    """Return what has the states of `parameters`, by name, read into memory laid out as they are.

    What the optimizer has for them already is used again, which costs nothing.
    """

    def choose(path: Key, entry: TensorStorageMetadata | None) -> Any:
        if path[1] != "state":
            return None
        parameter = parameters.get(path[2])
        if parameter is None:
            return UNWANTED
        if entry is None or entry.size != parameter.shape:
            return empty(entry)
        own = optimizer.state.get(parameter, {}).get(path[3])
        if is_laid_out_as(own, parameter, entry.properties.dtype):
            return own
        return torch.empty_like(parameter, dtype=entry.properties.dtype, requires_grad=False)

    return choose


def is_laid_out_as(value: Any, parameter: torch.Tensor, dtype: torch.dtype) -> bool:
    """Whether a state is a tensor of `dtype` that is sharded as its parameter is."""
    if not isinstance(value, torch.Tensor) or (value.shape, value.dtype) != (parameter.shape, dtype):
        return False
    if isinstance(value, DTensor) and isinstance(parameter, DTensor):
        return (value.device_mesh, value.placements) == (parameter.device_mesh, parameter.placements)
    return type(value) is torch.Tensor and not isinstance(parameter, DTensor) and value.device == parameter.device


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
