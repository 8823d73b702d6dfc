"""The files that checkpoints consist of: what tensors they hold, found without reading them, and each when wanted."""

from __future__ import annotations

import functools
import json
import logging
import os
import pickle
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

import torch

from accelerate.base.messages import message
from accelerate.big_modeling.spans import Buffer, Mappings, Span, read_into

logger = logging.getLogger("accelerate.utils.modeling")

#: The dtypes of the safetensors format, those that this release of torch has.
SAFETENSORS_DTYPES: dict[str, torch.dtype] = {
    name: getattr(torch, dtype)
    for name, dtype in {
        "F64": "float64",
        "F32": "float32",
        "F16": "float16",
        "BF16": "bfloat16",
        "F8_E4M3": "float8_e4m3fn",
        "F8_E5M2": "float8_e5m2",
        "F8_E8M0": "float8_e8m0fnu",
        "I64": "int64",
        "I32": "int32",
        "I16": "int16",
        "I8": "int8",
        "U64": "uint64",
        "U32": "uint32",
        "U16": "uint16",
        "U8": "uint8",
        "C64": "complex64",
        "BOOL": "bool",
    }.items()
    if hasattr(torch, dtype)
}

#: The length of the header, which a safetensors file begins with, and how long a header may be.
LENGTH_BYTES = 8
LONGEST_HEADER = 100_000_000


class CheckpointFile(ABC):
    """One file with tensors by name.

    Args:
        path: the file.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = os.fspath(path)

    @abstractmethod
    def names(self) -> list[str]:
        """Return the names of the tensors, in the order in which they lie in the file."""

    @abstractmethod
    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of a tensor."""

    @abstractmethod
    def dtype(self, name: str) -> torch.dtype:
        """Return the dtype of a tensor."""

    @abstractmethod
    def view(self, name: str) -> torch.Tensor:
        """Return a tensor on the CPU; mapped from the file rather than read, if the format allows that."""

    @abstractmethod
    def read_into(self, name: str, target: torch.Tensor, buffer: Buffer) -> None:
        """Read a tensor into the memory of `target`, through `buffer` if it has to be converted or moved."""

    def offload_entry(self, name: str) -> dict[str, Any] | None:
        """Return the entry of an offload index that finds a tensor in this file, or None if it has to be written."""
        return None


class SafetensorsFile(CheckpointFile):
    """A file in the safetensors format.

    Raises:
        ValueError: the file is truncated, is no such file, or was written for another framework.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        super().__init__(path)
        self.spans, self.metadata = read_header(self.path)
        self._mappings = Mappings()

    def names(self) -> list[str]:
        """Return the names of the tensors, in the order in which they lie in the file."""
        return sorted(self.spans, key=lambda name: self.spans[name].offset)

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of a tensor."""
        return self.spans[name].shape

    def dtype(self, name: str) -> torch.dtype:
        """Return the dtype of a tensor."""
        return self.spans[name].dtype

    def view(self, name: str) -> torch.Tensor:
        """Return a tensor that is mapped from the file."""
        return self._mappings.view(self.spans[name])

    def read_into(self, name: str, target: torch.Tensor, buffer: Buffer) -> None:
        """Read a tensor into the memory of `target`."""
        read_into(self.spans[name], target, buffer)

    def offload_entry(self, name: str) -> dict[str, Any]:
        """Return the entry of an offload index that finds a tensor in this file."""
        dtype = str(self.spans[name].dtype).removeprefix("torch.")
        return {"safetensors_file": os.path.abspath(self.path), "weight_name": name, "dtype": dtype}


class TorchFile(CheckpointFile):
    """A file that `torch.save` wrote; its tensors are mapped if it is of the format of torch 1.6 and later."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        super().__init__(path)
        self.tensors = self._load()

    def _load(self) -> dict[str, torch.Tensor]:
        try:
            try:
                found = torch.load(self.path, map_location="cpu", weights_only=True, mmap=True)
            except RuntimeError:  # an older format, which can only be read as a whole
                found = torch.load(self.path, map_location="cpu", weights_only=True)
        except (RuntimeError, EOFError, pickle.UnpicklingError) as error:
            raise ValueError(_unreadable(self.path, str(error).partition("\n")[0])) from error
        return {name: tensor for name, tensor in found.items() if isinstance(tensor, torch.Tensor)}

    def names(self) -> list[str]:
        """Return the names of the tensors."""
        return list(self.tensors)

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of a tensor."""
        return tuple(self.tensors[name].shape)

    def dtype(self, name: str) -> torch.dtype:
        """Return the dtype of a tensor."""
        return self.tensors[name].dtype

    def view(self, name: str) -> torch.Tensor:
        """Return a tensor."""
        return self.tensors[name].detach()

    def read_into(self, name: str, target: torch.Tensor, buffer: Buffer) -> None:
        """Copy a tensor into the memory of `target`."""
        target.detach().copy_(self.tensors[name])


def open_checkpoint(path: str | os.PathLike[str]) -> CheckpointFile:
    """Return the file at `path`, whose format its name tells."""
    if os.fspath(path).endswith(".safetensors"):
        return SafetensorsFile(path)
    return TorchFile(path)


def read_header(path: str) -> tuple[dict[str, Span], dict[str, str]]:
    """Return where the tensors of a safetensors file are, and its metadata; neither is to be changed.

    A model is loaded, and then dispatched: what a file says is remembered until it changes.

    Raises:
        ValueError: it is truncated, or no such file, or was written for another framework than torch.
    """
    found = os.stat(path)
    return _parsed(path, found.st_size, (found.st_dev, found.st_ino, found.st_mtime_ns))


@functools.lru_cache(maxsize=256)
def _parsed(path: str, size: int, version: tuple[int, int, int]) -> tuple[dict[str, Span], dict[str, str]]:
    """Read a header; `version` is what tells one content of the file from another."""
    with open(path, "rb") as file:
        length = int.from_bytes(file.read(LENGTH_BYTES), "little")
        if size < LENGTH_BYTES or length > min(LONGEST_HEADER, size - LENGTH_BYTES):
            raise ValueError(_unreadable(path, f"its header does not fit into its {size} bytes"))
        try:
            header = json.loads(file.read(length))
            metadata = header.pop("__metadata__", None)
            start = LENGTH_BYTES + length
            spans = {name: _span(path, start, entry) for name, entry in header.items()}
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ValueError(_unreadable(path, f"its header can't be read ({error})")) from error
    end = max((span.offset + span.nbytes for span in spans.values()), default=start)
    if end > size:
        raise ValueError(_unreadable(path, f"it is truncated: {size} bytes of {end} are there"))
    _check_framework(path, metadata)
    return spans, metadata or {}


def _span(path: str, start: int, entry: Mapping[str, Any]) -> Span:
    begin, end = entry["data_offsets"]
    if entry["dtype"] not in SAFETENSORS_DTYPES:
        raise ValueError(f"dtype {entry['dtype']} is not known to this release of torch")
    span = Span(path, start + begin, SAFETENSORS_DTYPES[entry["dtype"]], tuple(entry["shape"]))
    if begin < 0 or span.nbytes != end - begin:
        raise ValueError(f"{end - begin} bytes for a tensor of {span.nbytes}")
    return span


def _check_framework(path: str, metadata: Mapping[str, str] | None) -> None:
    if metadata is None:
        logger.warning(
            f"{path} doesn't say which framework wrote it; it is read as one of PyTorch. "
            "Write such files with metadata={'format': 'pt'}."
        )
        return
    written_for = metadata.get("format", "pt")
    if written_for not in ("pt", "mlx"):
        raise ValueError(
            message(
                given=f"the checkpoint {path}",
                why=f"it was written for {written_for!r}, whose names and layouts are others",
                allowed="files with the format 'pt'",
                do="convert the checkpoint with the library that wrote it",
            )
        )


def _unreadable(path: str, why: str) -> str:
    return message(
        given=f"the checkpoint {path}",
        why=why,
        allowed="a whole file in the safetensors format, or one that `torch.save` wrote with nothing but tensors in it",
        do="download or write the file again",
    )
