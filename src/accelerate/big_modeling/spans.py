"""Tensors that lie in files: where each is, mapping it into memory without reading, and reading it to where it goes.

A mapped tensor costs no memory of its own: pages come from the file when they are first touched, the system may drop
them again, and what is written to them stays private. Reading goes straight into the memory of the target, with no
buffer between unless the dtype differs.
"""

from __future__ import annotations

import functools
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from accelerate.base.messages import message

#: What one call to the system reads at most; larger tensors are read in several, which threads can share.
CHUNK = 64 * 2**20

#: What is converted or moved to an accelerator is read in pieces of so many bytes, which stay in the processor's cache.
PIECE = 4 * 2**20

#: Tensors in one buffer begin at multiples of so many bytes.
ALIGNED = 64


@dataclass(frozen=True)
class Span:
    """Where the bytes of a tensor are.

    Args:
        file: the path of the file.
        offset: where they begin, in bytes.
        dtype: what they are.
        shape: of the tensor, row by row.
    """

    file: str
    offset: int
    dtype: torch.dtype
    shape: tuple[int, ...]

    @functools.cached_property
    def numel(self) -> int:
        """How many elements it has."""
        return math.prod(self.shape)

    @functools.cached_property
    def nbytes(self) -> int:
        """How many bytes it takes."""
        return self.numel * self.dtype.itemsize


class Mappings:
    """Files that are mapped into memory, each once, for as long as a tensor of it or this object lives."""

    def __init__(self) -> None:
        self._storages: dict[str, torch.UntypedStorage] = {}

    def view(self, span: Span) -> torch.Tensor:
        """Return the tensor in the file, without reading it.

        Raises:
            ValueError: the file ends before the tensor does.
        """
        if not span.nbytes:
            return torch.empty(span.shape, dtype=span.dtype)
        storage = self._storages.get(span.file)
        if storage is None:
            storage = self._storages[span.file] = self._map(span.file)
        if span.offset + span.nbytes > storage.nbytes():
            raise ValueError(_too_short(span, storage.nbytes()))
        if span.offset % span.dtype.itemsize:
            return self._copy(span, storage)
        start = span.offset // span.dtype.itemsize
        return torch.empty(0, dtype=span.dtype).set_(storage, start, span.shape, _strides(span.shape))

    def _map(self, file: str) -> torch.UntypedStorage:
        mapped: Any = torch.UntypedStorage.from_file(file, shared=False, nbytes=os.path.getsize(file))
        return mapped

    def _copy(self, span: Span, storage: torch.UntypedStorage) -> torch.Tensor:
        """Return a copy of a tensor that starts where no element can."""
        data = torch.empty(0, dtype=torch.uint8).set_(storage, span.offset, (span.nbytes,), (1,))
        return data.clone().view(span.dtype).view(span.shape)


def _strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the strides of a tensor that lies row by row."""
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= size
    return tuple(reversed(strides))


def read_into(span: Span, target: torch.Tensor, buffer: Buffer | None = None) -> None:
    """Read a tensor from its file into the memory of another, converting if the dtypes differ.

    Args:
        span: where it is.
        target: a tensor of the same shape, on any device.
        buffer: where to read what can't be read to its place directly; by default memory of its own.
    """
    direct = target.dtype == span.dtype and target.device.type == "cpu" and target.is_contiguous()
    if direct:
        _read(span, target.detach())
        return
    buffer = buffer or Buffer()
    if not target.is_contiguous():
        target.detach().copy_(_filled(span, buffer))
        return
    flat = target.detach().view(-1)
    for start in range(0, span.numel, PIECE // span.dtype.itemsize):
        stop = min(start + PIECE // span.dtype.itemsize, span.numel)
        piece = Span(span.file, span.offset + start * span.dtype.itemsize, span.dtype, (stop - start,))
        flat[start:stop].copy_(_filled(piece, buffer))


def _filled(span: Span, buffer: Buffer) -> torch.Tensor:
    """Return a tensor, read into a buffer."""
    read = buffer.like(span)
    _read(span, read)
    return read


class Buffer:
    """Memory that is used again for one tensor after the other.

    Args:
        pinned: page-locked, so that accelerators can copy from it by themselves.
    """

    def __init__(self, pinned: bool = False) -> None:
        self.pinned = pinned
        self._bytes = torch.empty(0, dtype=torch.uint8)

    def like(self, span: Span) -> torch.Tensor:
        """Return an uninitialised tensor of the shape and dtype of `span`; what was returned before is overwritten."""
        return self.several([(span.shape, span.dtype)])[0]

    def several(self, layout: Sequence[tuple[Sequence[int], torch.dtype]]) -> list[torch.Tensor]:
        """Return uninitialised tensors of some shapes and dtypes; what was returned before is overwritten."""
        starts, end = [], 0
        for shape, dtype in layout:
            starts.append(end)
            end += -(-math.prod(shape) * dtype.itemsize // ALIGNED) * ALIGNED
        if self._bytes.numel() < end:
            self._bytes = torch.empty(end, dtype=torch.uint8, pin_memory=self.pinned)
        return [
            self._bytes[start : start + math.prod(shape) * dtype.itemsize].view(dtype).view(tuple(shape))
            for start, (shape, dtype) in zip(starts, layout, strict=True)
        ]


def _read(span: Span, target: torch.Tensor) -> None:
    """Fill a contiguous tensor on the CPU with the bytes of `span`."""
    memory = memoryview(bytes_of(target))
    descriptor = os.open(span.file, os.O_RDONLY)
    try:
        done = 0
        while done < span.nbytes:
            got = os.preadv(descriptor, [memory[done : done + CHUNK]], span.offset + done)
            if got == 0:
                raise ValueError(_too_short(span, os.path.getsize(span.file)))
            done += got
    finally:
        os.close(descriptor)


def bytes_of(tensor: torch.Tensor) -> Any:
    """Return the bytes of a contiguous tensor on the CPU as a numpy array that shares its memory."""
    return tensor.detach().reshape(-1).view(torch.uint8).numpy()


def _too_short(span: Span, size: int) -> str:
    return message(
        given=f"the file {span.file} of {size} bytes",
        why=f"a tensor of it lies at bytes {span.offset} to {span.offset + span.nbytes}: the file is truncated",
        allowed="the whole file",
        do="download or write the file again",
    )
