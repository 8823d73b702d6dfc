"""The order in which parts of a model run, learnt while they do.

What follows a part is remembered together with the part before it, so that a module that runs several times in one
forward is told apart. A forward that skips parts, or a generation loop with forwards of two kinds, changes what is
remembered where it differs, and nothing else. Each thread has its own place in the order.
"""

from __future__ import annotations

import threading
from collections.abc import Hashable, Iterator

Part = Hashable


class Order:
    """What runs after what."""

    def __init__(self) -> None:
        self._after: dict[tuple[Part | None, Part], Part] = {}
        self._place = threading.local()
        #: How many parts have run, when each ran last, and how long after the time before.
        self._clock = 0
        self._last: dict[Part, int] = {}
        self._period: dict[Part, int] = {}

    def visit(self, part: Part) -> None:
        """Take note that `part` runs now, in this thread."""
        place = self._place.__dict__
        before, current = place.get("before"), place.get("current")
        if current is not None:
            self._after[before, current] = part
        place["before"], place["current"] = current, part
        self._clock = clock = self._clock + 1
        last = self._last.get(part)
        if last is not None:
            self._period[part] = clock - last
        self._last[part] = clock

    def following(self) -> Iterator[Part]:
        """Yield what is expected to run in this thread after the part that does, without end if it goes round."""
        place = self._place.__dict__
        before, current = place.get("before"), place.get("current")
        while current is not None:
            before, current = current, self._after.get((before, current))
            if current is not None:
                yield current

    def next_use(self, part: Part) -> int:
        """Return when `part` is expected to run again, on a scale on which later is more; never is latest."""
        if part not in self._period:
            return 2 * self._clock
        return self._last[part] + self._period[part]
