"""Names to things: how a room finds the strategy, precision, launcher or tracker that was asked for by name.

A thing is registered as itself or as "module:attribute", which is imported when it is first wanted. Other distributions
add theirs with an entry point in the group `accelerate.<room>`, without a line of ours.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from typing import Generic, TypeVar, cast

from accelerate.base.messages import did_you_mean, message

T = TypeVar("T")


class Registry(Generic[T]):
    """The things of one room, by name.

    Args:
        room: what the things are, in the plural ("launchers"); also the entry-point group's ending.
    """

    def __init__(self, room: str) -> None:
        self.room = room
        self._entries: dict[str, T | str] = {}
        self._looked_outside = False

    def register(self, name: str, entry: T | str) -> None:
        """Add, or replace, what `name` stands for: the thing, or "module:attribute"."""
        self._entries[name] = entry

    def get(self, name: str) -> T:
        """Return what `name` stands for.

        Raises:
            ValueError: nothing is registered under it; names the nearest.
        """
        if name not in self:
            raise ValueError(
                message(
                    given=f"{name!r} among the {self.room}",
                    why="nothing is registered under this name",
                    allowed=", ".join(self.names()),
                    do=did_you_mean(name, self.names()),
                )
            )
        entry = self._entries[name]
        if isinstance(entry, str):
            module, _, attribute = entry.partition(":")
            entry = self._entries[name] = cast("T", getattr(importlib.import_module(module), attribute))
        return entry

    def names(self) -> list[str]:
        """Return every name, in the order of registration, those of other distributions last."""
        self._look_outside()
        return list(self._entries)

    def __contains__(self, name: object) -> bool:
        if name not in self._entries:
            self._look_outside()
        return name in self._entries

    def __iter__(self) -> Iterator[str]:
        return iter(self.names())

    def _look_outside(self) -> None:
        """Add, once, what installed distributions offer; a name of ours is not replaced."""
        if self._looked_outside:
            return
        self._looked_outside = True
        from importlib.metadata import entry_points

        for point in entry_points(group=f"accelerate.{self.room}"):
            self._entries.setdefault(point.name, point.value)
