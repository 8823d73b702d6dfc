"""Bring parts of a model to a device before they run, within a stated amount of memory.

Threads read the next parts while the current one computes. Parts that have run stay for as long as there is room, and
the one whose next use is furthest away goes first. A part that was not expected is read at once.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import torch

from accelerate.big_modeling.order import Order, Part
from accelerate.big_modeling.streams import Copies

#: A part on the device, and what tells when it is there.
Brought = tuple[list[torch.Tensor], Any]


class _Entry:
    """A part that is on the device, or on its way."""

    __slots__ = ("future", "size", "users", "versions")

    def __init__(self, future: Future[Brought], size: int) -> None:
        self.future = future
        self.size = size
        #: How many forwards use it now.
        self.users = 0
        self.versions: list[int] = []


class Prefetcher:
    """The parts of one model on one device.

    Args:
        bring: reads a part and begins to copy it to the device; called in threads.
        size_of: the bytes of a part there.
        copies: how the copies are waited for.
        room: the bytes that parts may take which are not in use, and those that are being brought.
        readers: how many parts are read at a time.
    """

    def __init__(
        self,
        bring: Callable[[Part], Brought],
        size_of: Callable[[Part], int],
        copies: Copies,
        room: int,
        readers: int,
    ) -> None:
        self.bring = bring
        self.size_of = size_of
        self.copies = copies
        self.room = room
        self.readers = readers
        self.order = Order()
        self._entries: dict[Part, _Entry] = {}
        #: The bytes of those that are not in use.
        self._idle = 0
        self._lock = threading.RLock()
        self._pool: ThreadPoolExecutor | None = None
        self._owner = 0

    def get(self, part: Part) -> Sequence[torch.Tensor]:
        """Return the tensors of a part, which is in use until `done`; begin to bring those that follow."""
        with self._lock:
            self.order.visit(part)
            entry = self._use(part)
            self._look_ahead(part)
        try:
            tensors, end = self._wait(part, entry)
        except BaseException:
            self._forget(part)
            raise
        self.copies.use(tensors, end)
        return tensors

    def done(self, part: Part) -> None:
        """Take note that a forward has ended in which a part was used; one that was written to is not used again."""
        with self._lock:
            entry = self._entries.get(part)
            if entry is None or not entry.users:
                return
            entry.users -= 1
            if entry.users:
                return
            self._idle += entry.size
            tensors, _ = entry.future.result()
            if entry.versions != [tensor._version for tensor in tensors]:
                self._forget(part)
            self._make_room(0)

    def clear(self) -> None:
        """Let go of everything that is not in use."""
        with self._lock:
            for part, entry in list(self._entries.items()):
                if not entry.users:
                    self._forget(part)

    def _use(self, part: Part) -> _Entry:
        """Return the entry of a part, in use."""
        entry = self._entries.get(part) or self._begin(part)
        if not entry.users:
            self._idle -= entry.size
        entry.users += 1
        return entry

    def _wait(self, part: Part, entry: _Entry) -> Brought:
        """Return what was brought; without anything else on the device if it had no room for it before."""
        try:
            brought = entry.future.result()
        except torch.OutOfMemoryError:
            self.clear()
            with self._lock:
                self._forget(part)
                entry = self._use(part)
            brought = entry.future.result()
        entry.versions = [tensor._version for tensor in brought[0]]
        return brought

    def _begin(self, part: Part) -> _Entry:
        """Begin to bring a part, which is not in use yet."""
        entry = _Entry(self._threads().submit(self.bring, part), self.size_of(part))
        self._entries[part] = entry
        self._idle += entry.size
        return entry

    def _look_ahead(self, current: Part) -> None:
        """Begin to bring the parts that follow; the next one in any case, others into half of the room.

        The other half is for what stays from one forward to the next: looking further ahead would drive that out.
        """
        ahead = 0
        wanted: set[Part] = {current}
        for part in self.order.following():
            ahead += self.size_of(part)
            if part in wanted or (len(wanted) > 1 and ahead > self.room // 2):
                return
            wanted.add(part)
            if part not in self._entries:
                if not self._make_room(self.size_of(part), wanted):
                    return
                self._begin(part)

    def _make_room(self, size: int, keep: Collection[Part] = ()) -> bool:
        """Drop the parts that are used latest until there is room for `size` bytes more; return whether there is."""
        while self._idle + size > self.room:
            idle = [part for part, entry in self._entries.items() if not entry.users and part not in keep]
            if not idle:
                return False
            self._forget(max(idle, key=self.order.next_use))
        return True

    def _forget(self, part: Part) -> None:
        """Drop a part; whoever uses its tensors keeps them."""
        with self._lock:
            entry = self._entries.pop(part, None)
            if entry is not None:
                entry.future.cancel()
                if not entry.users:
                    self._idle -= entry.size

    def _threads(self) -> ThreadPoolExecutor:
        """Return the readers; new ones in a process that was forked from the one that had them."""
        if self._pool is None or self._owner != os.getpid():
            self._pool = ThreadPoolExecutor(self.readers, thread_name_prefix="accelerate-prefetch")
            self._owner = os.getpid()
        return self._pool
