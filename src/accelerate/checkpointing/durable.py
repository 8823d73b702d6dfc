"""Getting bytes onto the disk so that they stay there: checksums while writing, flushing, renaming, removing.

Every change that a checkpoint makes to the file system goes through the functions here. A file is only counted as
written once `fsync` has returned; a folder is only counted as committed once it was renamed and its parent flushed.
"""

from __future__ import annotations

import errno
import mmap
import os
import shutil
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, cast

import numpy as np

WORD = np.dtype("<u8")
BLOCK_WORDS = 2**15
BLOCK = BLOCK_WORDS * WORD.itemsize  #: bytes that are summed at once: 256 KiB, with their weights within an L2 cache
#: Bytes that are summed, written, and then brought to the disk while more are written. Between two of these steps a
#: thread needs the interpreter, which training beside it has to hand over and wait for: few, and so long ones.
STRETCH = 32 * BLOCK
PAUSE = 6  #: so many times as long as a stretch took is the disk left alone after it, while training goes on
CHECKSUM = "dot64"
_RING = 2**64
_CHAIN = 0x9E3779B97F4A7C15  #: odd, so that multiplying by it loses nothing


def _weights() -> Any:
    """Return the odd weights of the words in a block: splitmix64 of their positions, the same everywhere."""
    bits = (np.arange(1, BLOCK_WORDS + 1, dtype=np.uint64)) * np.uint64(_CHAIN)
    bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return (bits ^ (bits >> np.uint64(31))) | np.uint64(1)


_WEIGHTS = _weights()


class Checksum:
    """A 64-bit checksum of a stream of bytes, three times as fast as CRC-32 in zlib.

    The bytes are read as little-endian 64-bit words. Each block of 32,768 of them (the last one filled up with zeros)
    becomes the sum of its words times fixed odd weights, and blocks are chained by multiplying with an odd number
    before adding the next, all modulo 2**64. A change within one word always shows; any other goes unseen with a
    chance of about 2**-63. It finds damage, and doesn't protect from somebody who makes up a file to match.
    """

    def __init__(self) -> None:
        self.size = 0
        self._chain = 0
        self._rest = bytearray()

    def update(self, data: Any) -> None:
        """Take in more bytes."""
        view = memoryview(data).cast("B")
        self.size += len(view)
        if self._rest:
            missing = BLOCK - len(self._rest)
            self._rest += view[:missing]
            view = view[missing:]
            if len(self._rest) < BLOCK:
                return
            self._chain_up(sums_of(self._rest))
            self._rest = bytearray()
        whole = len(view) - len(view) % BLOCK
        if whole:
            self._chain_up(sums_of(view[:whole]))
        self._rest += view[whole:]

    def take(self, sums: Iterable[int], size: int) -> None:
        """Take in `size` more bytes whose blocks somebody else has summed; only the last block may be a part of one."""
        self.size += size
        self._chain_up(sums)

    def _chain_up(self, sums: Iterable[int]) -> None:
        for each in sums:
            self._chain = (self._chain * _CHAIN + each) % _RING

    def text(self) -> str:
        """Return the checksum of everything so far, with the name of the algorithm."""
        chain = self._chain
        for each in sums_of(self._rest):
            chain = (chain * _CHAIN + each) % _RING
        return f"{CHECKSUM}:{(chain * _CHAIN + self.size) % _RING:016x}"


def sums_of(data: Any) -> list[int]:
    """Return the weighted sums of the blocks in `data`; the last one may be a part of a block."""
    view = memoryview(data).cast("B")
    whole = len(view) - len(view) % BLOCK
    blocks = np.frombuffer(view[:whole], WORD).reshape(-1, BLOCK_WORDS)
    sums: list[int] = np.einsum("ij,j->i", blocks, _WEIGHTS).tolist()  # half as fast again as `dot`
    if rest := bytes(view[whole:]):
        words = np.frombuffer(rest + bytes(-len(rest) % WORD.itemsize), WORD)
        sums.append(int(np.dot(words, _WEIGHTS[: len(words)])))
    return sums


@dataclass(frozen=True)
class FileFact:
    """What a file has to look like: its size in bytes and its checksum."""

    size: int
    checksum: str


class Sink:
    """A new file that is summed while it is written; `torch.save` can write to it.

    Args:
        path: the file, which must not exist.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = open(path, "xb", buffering=0)  # noqa: SIM115  (closed by `finish` or `close`)
        self._checksum = Checksum()
        hurry, self._stretches = _beside.hurry, cast(Stretches, Through(self._file))
        if hurry is not None and write_directly(self._file.fileno(), True):
            self._stretches = Around(self._file, hurry)

    def write(self, data: Any) -> int:
        """Write bytes (any buffer), all of them."""
        view = memoryview(data).cast("B")
        start = 0
        while start < len(view):
            end = start + STRETCH - self._checksum.size % STRETCH
            self._stretches.write(view[start:end], self._checksum)
            start = end
        return len(view)

    def tell(self) -> int:
        """Return how many bytes were written."""
        return self._checksum.size

    def flush(self) -> None:
        """Do nothing: nothing is kept back for others, and `finish` brings it to the disk."""

    def finish(self) -> FileFact:
        """Bring everything to the disk, close the file, and return what it has to look like."""
        self._stretches.finish()
        flush_file(self._file.fileno())
        self._file.close()
        return FileFact(self._checksum.size, self._checksum.text())

    def close(self) -> None:
        """Close the file as it is, when it is not going to be complete."""
        self._file.close()


class Stretches(Protocol):
    """How a file is written, stretch by stretch."""

    def write(self, view: memoryview, checksum: Checksum) -> None:
        """Write and sum bytes of which none lies beyond the current stretch."""

    def finish(self) -> None:
        """Hand what is kept back to the system."""


class Through:
    """Writes through the system's memory for files, and has each stretch brought to the disk while more is written."""

    def __init__(self, file: Any) -> None:
        self._file = file

    def write(self, view: memoryview, checksum: Checksum) -> None:
        checksum.update(view)
        write_all(self._file, view)
        if checksum.size % STRETCH == 0:
            begin_flush(self._file.fileno(), checksum.size - STRETCH, checksum.size)

    def finish(self) -> None:
        pass


class Around:
    """Writes past the system's memory for files: a third of the work, and none of it on other threads of the system.

    Disks take whole sectors from addresses that fit, so bytes are gathered into a stretch, which a cache holds. After
    each the disk is left alone for a while, unless somebody waits: what it takes from memory, training has to wait for.

    Args:
        file: the file.
        hurry: is set when somebody waits.
    """

    def __init__(self, file: Any, hurry: threading.Event) -> None:
        self._file = file
        self._hurry = hurry
        self._area = mmap.mmap(-1, STRETCH)
        self._stretch = np.frombuffer(self._area, np.uint8)
        self._size = 0

    def write(self, view: memoryview, checksum: Checksum) -> None:
        part = self._stretch[self._size : self._size + len(view)]
        np.copyto(part, np.frombuffer(view, np.uint8))  # lets other threads go on meanwhile, as an assignment would not
        checksum.update(part)
        self._size += len(view)
        if self._size == STRETCH:
            begun = time.monotonic()
            try:
                write_all(self._file, memoryview(self._area))
            except OSError as error:
                if error.errno != errno.EINVAL:
                    raise
                self.finish()  # the system doesn't write directly after all, or no longer, so near to the end of a disk
            self._size = 0
            if threading.main_thread().is_alive():  # or the process is about to end, and waits for this
                self._hurry.wait(PAUSE * (time.monotonic() - begun))

    def finish(self) -> None:
        write_directly(self._file.fileno(), False)  # the end of a file is no whole sector
        done = self._file.tell() % STRETCH
        write_all(self._file, memoryview(self._area)[done : self._size])


def write_directly(descriptor: int, direct: bool) -> bool:
    """Have writes to a file go past the system's memory or not; return whether the file system can do that."""
    if not hasattr(os, "O_DIRECT"):
        return False
    import fcntl  # there wherever the flag is

    flags = fcntl.fcntl(descriptor, fcntl.F_GETFL)
    try:
        fcntl.fcntl(descriptor, fcntl.F_SETFL, flags | os.O_DIRECT if direct else flags & ~os.O_DIRECT)
    except OSError:
        return False
    return True


class _Beside(threading.local):
    hurry: threading.Event | None = None


_beside = _Beside()


@contextmanager
def beside_training(hurry: threading.Event) -> Iterator[None]:
    """Let this thread write files in the way that leaves most of the machine to others; nobody will read them soon.

    Args:
        hurry: set it when somebody waits for the files.
    """
    _beside.hurry = hurry
    try:
        yield
    finally:
        _beside.hurry = None


def write_all(file: Any, view: memoryview) -> None:
    """Write `view` to an unbuffered file, however much the system takes at once."""
    while view:
        view = view[file.write(view) :]


def begin_flush(descriptor: int, start: int, end: int) -> None:
    """Ask the system to bring a part of an open file to the disk while more is written, where it can be asked.

    What is said is that the part won't be needed soon, upon which Linux begins to write it out. The pages stay in
    memory: one that is not on the disk yet is not given up.
    """
    if hasattr(os, "posix_fadvise"):
        with suppress(OSError):  # only advice: a file system may not take any
            os.posix_fadvise(descriptor, start, end - start, os.POSIX_FADV_DONTNEED)


def flush_file(descriptor: int) -> None:
    """Return when what was written to an open file is on the disk."""
    os.fsync(descriptor)


def flush_folder(folder: Path) -> None:
    """Return when the names in `folder` are on the disk."""
    if os.name == "nt":  # Windows keeps names on its own, and can't open folders
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def rename(source: Path, target: Path) -> None:
    """Give a file or folder its final name, in one step, and return when that is on the disk."""
    os.replace(source, target)
    flush_folder(target.parent)


def remove_folder(folder: Path) -> None:
    """Remove a folder and everything in it; of a link to a folder, only the link."""
    if folder.is_symlink():
        folder.unlink()
    else:
        shutil.rmtree(folder)
