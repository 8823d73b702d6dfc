"""Have parts of files in the memory of the system before they are touched.

Weights that are mapped from files cost nothing while the system has the pages. Where it hasn't, since they were never
read or had to go, a thread reads them before their turn. Whether it has is asked for one byte per piece, which takes
about a microsecond; while nothing is found missing, it is asked for rarely.
"""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Iterable

from accelerate.big_modeling.spans import Span

#: What is asked for and read as one.
PIECE = 2**20

#: Of how many calls one looks, while nothing has been missing lately; and after how many looks that is so.
RARELY = 64
PATIENCE = 256


class ReadAhead:
    """A thread that reads ahead, started when it is first needed.

    Args:
        limit: how many bytes at most are looked at per call.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._calls = 0
        self._idle_looks = 0
        self._wanted: queue.SimpleQueue[list[Span]] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._owner = 0

    def due(self) -> bool:
        """Return whether this call should say what comes next."""
        self._calls += 1
        return self._idle_looks < PATIENCE or self._calls % RARELY == 0

    def want(self, spans: Iterable[Span]) -> None:
        """Have the thread look at parts of files, in their order, up to the limit."""
        taken: list[Span] = []
        total = 0
        for span in spans:
            total += span.nbytes
            if total > self.limit and taken:
                break
            taken.append(span)
        if taken and self._wanted.qsize() < 2:  # what is late is of no use
            self._start()
            self._wanted.put(taken)

    def _start(self) -> None:
        if self._thread is None or self._owner != os.getpid():
            self._owner = os.getpid()
            self._thread = threading.Thread(target=self._run, name="accelerate-read-ahead", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        piece = bytearray(PIECE)
        while True:
            missing = sum(bring_in(span, piece) for span in self._wanted.get())
            self._idle_looks = 0 if missing else self._idle_looks + 1


def bring_in(span: Span, buffer: bytearray) -> int:
    """Read what the system hasn't in memory of a part of a file; return how many pieces that were.

    Args:
        span: the part.
        buffer: memory to read into; what is in it does not matter.
    """
    try:
        descriptor = os.open(span.file, os.O_RDONLY)
    except OSError:
        return 0  # whoever wants the weights themselves says what is wrong
    missing = 0
    try:
        end = span.offset + span.nbytes
        for start in range(span.offset, end, len(buffer)):
            size = min(len(buffer), end - start)
            if not _is_there(descriptor, start):
                missing += 1
                os.preadv(descriptor, [memoryview(buffer)[:size]], start)
    finally:
        os.close(descriptor)
    return missing


def _is_there(descriptor: int, offset: int) -> bool:
    """Return whether the system has a byte of a file in memory; True where it can't be asked."""
    try:
        os.preadv(descriptor, [bytearray(1)], offset, os.RWF_NOWAIT)
    except BlockingIOError:
        return False
    except (AttributeError, OSError):
        return True
    return True
