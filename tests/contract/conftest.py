"""Worlds of one to four processes, each started once per test worker."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

import pytest

from .world import World, reset_states

_world = cache(World)


@pytest.fixture(scope="session", autouse=True)
def _close_worlds() -> Iterator[None]:
    yield
    for size in (1, 2, 3, 4):
        _world(size).close()


class Alone:
    """A world of one: the calling process."""

    size = 1

    def run(self, function, *args, **kwargs):
        reset_states()
        try:
            return [function(*args, **kwargs)]
        finally:
            reset_states()


def world_of(size: int) -> World | Alone:
    return Alone() if size == 1 else _world(size)


def processes(size: int) -> World:
    """Return `size` processes, also one that is not the calling one, for what starts workers or counts warnings."""
    return _world(size)


@pytest.fixture(params=[1, 2, 4], ids="processes={}".format)
def world(request: pytest.FixtureRequest) -> World | Alone:
    """A world of one, two and four processes in turn."""
    return world_of(request.param)


@pytest.fixture
def pair() -> World:
    """Two processes."""
    return _world(2)
