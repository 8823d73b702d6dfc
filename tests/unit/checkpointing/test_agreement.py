"""Steps that fail on all ranks or on none."""

from __future__ import annotations

import pytest

from accelerate.checkpointing.agreement import decided, gathered, together
from accelerate.comm.fake import FakeWorld


class Odd(Exception):
    """An error that can't travel."""

    def __init__(self, a, b):
        super().__init__(a)


def outcome(function):
    try:
        return function()
    except Exception as error:
        return type(error).__name__, str(error)


@pytest.mark.parametrize("size", [1, 3])
def test_what_goes_well_everywhere_is_returned(size):
    def rank(collectives):
        own = together(collectives, lambda: collectives.rank, "counting")
        return own, gathered(collectives, lambda: collectives.rank, "counting")

    assert FakeWorld(size).run(rank) == [(own, list(range(size))) for own in range(size)]


@pytest.mark.parametrize("step", [together, gathered])
def test_a_failure_on_one_rank_is_one_on_all(step):
    def rank(collectives):
        def fail():
            if collectives.rank == 1:
                raise OSError("no space left")

        return outcome(lambda: step(collectives, fail, "writing"))

    first, second, third = FakeWorld(3).run(rank)
    assert second == ("OSError", "no space left")
    assert first == third
    assert first[0] == "RuntimeError"
    assert "Given: writing, on all ranks" in first[1]
    assert "rank 1 failed: OSError: no space left" in first[1]


def test_rank_0_decides():
    def rank(collectives):
        return decided(collectives, lambda: f"by {collectives.rank}")

    assert FakeWorld(3).run(rank) == ["by 0"] * 3


@pytest.mark.parametrize(
    ("error", "seen"), [(ValueError("no"), ("ValueError", "no")), (Odd("a", "b"), ("RuntimeError", "Odd: a"))]
)
def test_the_error_of_rank_0_is_raised_on_all(error, seen):
    def rank(collectives):
        def fail():
            raise error

        return outcome(lambda: decided(collectives, fail))

    assert FakeWorld(2).run(rank) == [seen] * 2
