"""States that every part of a process sees alike: all instances of a class share one dictionary.

A script may write `PartialState()` or `AcceleratorState()` anywhere and meets the same facts; `X._shared_state == {}`
is the public test for "not initialised yet". Resetting clears that dictionary in place, so instances that are still
held somewhere turn empty too, and say so when they are asked. Where torch_xla can run several replicas as threads of
one process, every thread has a dictionary of its own.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any, ClassVar, NoReturn

from accelerate.base.messages import message


class ThreadLocalSharedDict(threading.local):
    """A dictionary per thread, used as a class attribute; `thread_local` names what it is and changes nothing."""

    def __init__(self, thread_local: bool = False) -> None:
        self._storage: dict[str, Any] = {}

    def __get__(self, instance: object, owner: type | None = None) -> dict[str, Any]:
        return self._storage

    def __set__(self, instance: object, value: dict[str, Any]) -> None:
        self._storage = value


SharedDict: Callable[[], Any] = ThreadLocalSharedDict if find_spec("torch_xla") else dict


class Borg:
    """A class whose instances share `_shared_state`.

    A subclass gives itself `_shared_state = SharedDict()`, calls `super().__init__()` first in its own `__init__`, and
    lists in `_known_attrs` what an initialised state has and in `_handles` what can't leave the process.
    A copy or an unpickled instance joins the state of the process it wakes up in; in a process without one, such as a
    spawned data worker, it keeps the plain facts it carried and starts nothing.
    """

    _shared_state: ClassVar[dict[str, Any]]
    _known_attrs: ClassVar[list[str]] = []
    _handles: ClassVar[frozenset[str]] = frozenset()

    def __init__(self) -> None:
        self.__dict__ = self._shared_state

    @property
    def initialized(self) -> bool:
        """Whether the state holds anything, that is, was built and not reset since."""
        return self._shared_state != {}

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name not in self._handles}

    def __setstate__(self, carried: dict[str, Any]) -> None:
        if self._shared_state:
            self.__dict__ = self._shared_state
        else:
            self.__dict__.update(carried)

    def __getattr__(self, name: str) -> NoReturn:
        kind = type(self).__name__
        if name not in self._known_attrs and name not in self._handles and not hasattr(type(self), name):
            raise AttributeError(f"{kind!r} object has no attribute {name!r}")
        raise AttributeError(self._why_missing(name))

    def _why_missing(self, name: str) -> str:
        """Say why an attribute that belongs to this state isn't there."""
        kind = type(self).__name__
        return message(
            given=f"`{name}` of `{kind}`, which is empty",
            why="nothing was built yet, or it was reset since",
            allowed=f"reading `{name}` from an initialised `{kind}`",
            do="build an `Accelerator` or a `PartialState` again before reading it",
        )
