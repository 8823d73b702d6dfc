"""Reading files as fast as memory allows: in pieces that a cache holds, by as many threads as there are cores.

To map a file saves a copy, and costs as much in page tables; and a mapped page that can't be read ends the process,
where reading says what is wrong. So files are read when they are checked. What is mapped all the same, because it may
never be looked at, is copied ahead of whoever writes to it first.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import sys
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, cast

import torch

from accelerate.checkpointing.durable import BLOCK, Checksum, FileFact, sums_of

PIECE = 4 * BLOCK  #: bytes that are read and summed in turn, while a cache holds them
SEGMENT = 8 * PIECE  #: bytes of a file that one of several threads reads, before it takes up others
MOST_READERS = 8  #: threads of one process that read files; memory has no room for more
POPULATE_WRITE = 23  #: advice to Linux, from 5.14 on: make pages ready to be written to
AHEAD = 2**22  #: bytes that are copied ahead in one call, during which no other thread can map anything


def readers(ranks: int) -> int:
    """Return how many threads each of the `ranks` ranks of a machine may read files with."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(max(cores // ranks, 1), MOST_READERS)


def fact_of(path: Path, threads: int = 1) -> FileFact:
    """Read a whole file and return what it looks like; memory use doesn't grow with its size.

    Args:
        path: the file.
        threads: how many of them read and sum parts of a file that is great enough.
    """
    return facts_of([path], threads)[path]


def facts_of(paths: Sequence[Path], threads: int = 1) -> dict[Path, FileFact]:
    """Do as :func:`fact_of` for several files, which the threads share out among them."""
    parts = [(path, start) for path in paths for start in range(0, path.stat().st_size, SEGMENT)]
    left, found = deque(parts), dict[tuple[Path, int], tuple[list[int], int]]()

    def read() -> None:
        buffer = memoryview(bytearray(PIECE))
        with suppress(IndexError):  # somebody else has taken the last one
            while left:
                part = left.popleft()
                found[part] = _sums_in(*part, buffer)

    in_threads(read, min(threads, len(parts)))
    checksums = {path: Checksum() for path in paths}
    for path, start in parts:
        checksums[path].take(*found[path, start])
    return {path: FileFact(checksum.size, checksum.text()) for path, checksum in checksums.items()}


def _sums_in(path: Path, start: int, buffer: memoryview) -> tuple[list[int], int]:
    """Read one segment of a file, and return the sums of its blocks and how many bytes it has."""
    sums, size = list[int](), 0
    with open(path, "rb", buffering=0) as file:
        file.seek(start)
        while size < SEGMENT and (count := fill(file, buffer)):
            sums += sums_of(buffer[:count])
            size += count
    return sums, size


def in_threads(work: Callable[[], object], threads: int) -> None:
    """Do some work in this thread and in others at the same time, until all are through; raise what one raised."""
    if threads < 2:
        work()
        return
    with ThreadPoolExecutor(threads - 1) as pool:
        others = [pool.submit(work) for _ in range(threads - 1)]
        work()
        for each in others:
            each.result()


def fill(file: Any, buffer: memoryview) -> int:
    """Read until a buffer is full or the file ends, and return how many bytes there were."""
    count = 0
    while count < len(buffer) and (more := file.readinto(buffer[count:])):
        count += more
    return count


def fill_from(file: Any, begin: int, buffer: memoryview) -> int:
    """Do as :func:`fill` from a place in an open file; several threads may do so at a time."""
    if not hasattr(os, "preadv"):
        with open(file.name, "rb", buffering=0) as other:
            other.seek(begin)
            return fill(other, buffer)
    count = 0
    while count < len(buffer) and (more := os.preadv(file.fileno(), [buffer[count:]], begin + count)):
        count += more
    return count


@dataclass(frozen=True)
class Piece:
    """A tensor in host memory whose values lie in one piece in it, and in an open file from `begin` on."""

    name: str
    file: Any
    begin: int
    target: torch.Tensor

    def read(self) -> None:
        """Read the values.

        Raises:
            EOFError: the file ends before they do.
        """
        if self.target.numel() == 0:
            return
        values = memoryview(cast(Any, self.target.detach().view(-1).view(torch.uint8).numpy()))
        if fill_from(self.file, self.begin, values) < len(values):
            raise EOFError(f"{self.file.name} ends before the values of {self.name} do")


def can_take_bytes(tensor: Any) -> bool:
    """Return whether a tensor's values lie in host memory as they do in files, one after the other."""
    return (
        type(tensor) in (torch.Tensor, torch.nn.Parameter)
        and tensor.device.type == "cpu"
        and tensor.is_contiguous()
        and not tensor.dtype.is_complex
        and sys.byteorder == "little"
    )


def read_pieces(pieces: Iterable[Piece], threads: int) -> None:
    """Read tensors, as many at a time as there are threads.

    Raises:
        EOFError: a file ends too early.
    """
    left = deque(pieces)

    def read() -> None:
        with suppress(IndexError):
            while left:
                left.popleft().read()

    in_threads(read, min(threads, len(left)))


def copy_ahead(tensors: Sequence[weakref.ref[torch.Tensor]]) -> None:
    """Have another thread copy the pages of mapped tensors that training is going to write to.

    Whoever writes first to such a page has to wait until the system has copied it, page by page; a first update would
    take half as long again. Tensors that nobody keeps are left out.
    """
    if tensors and _madvise() is not None:
        threading.Thread(target=_copy, args=(tensors,), name="accelerate-copy-ahead", daemon=True).start()


def _copy(tensors: Sequence[weakref.ref[torch.Tensor]]) -> None:
    for each in tensors:
        tensor = each()
        if tensor is not None and tensor.device.type == "cpu" and tensor.is_contiguous():
            for start in range(0, tensor.nbytes, AHEAD):
                _populate(tensor.data_ptr() + start, min(AHEAD, tensor.nbytes - start))


def _populate(address: int, length: int) -> None:
    """Have the pages of a stretch of memory made ready, while other threads go on; older systems don't take advice."""
    begin = address - address % mmap.PAGESIZE
    _madvise()(begin, address + length - begin, POPULATE_WRITE)


@cache
def _madvise() -> Any:
    """Return the system's function of this name; None on systems other than Linux."""
    if sys.platform != "linux":
        return None
    function = ctypes.CDLL(None).madvise
    function.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    return function
