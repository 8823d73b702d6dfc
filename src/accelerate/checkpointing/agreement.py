"""Steps that succeed on every rank or fail on every rank, so that nobody waits for somebody who has given up."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any, TypeVar

from accelerate.base.messages import message
from accelerate.comm.collectives import Collectives

T = TypeVar("T")


def together(collectives: Collectives, step: Callable[[], T], what: str) -> T:
    """Take a step on every rank and return what it returned on this one.

    Args:
        collectives: all ranks.
        step: the step; it may not communicate.
        what: what it does, for the error on ranks where it went well.

    Raises:
        Exception: what the step raised on this rank; RuntimeError where another rank failed.
    """
    value, error = _attempt(step)
    _agree(error, collectives.all_gather_object(_text(error)), what)
    return value


def gathered(collectives: Collectives, step: Callable[[], T], what: str) -> list[T]:
    """The same as :func:`together`, but return what the step returned on every rank, in their order."""
    value, error = _attempt(step)
    outcomes = collectives.all_gather_object((value, _text(error)))
    _agree(error, [text for _, text in outcomes], what)
    return [value for value, _ in outcomes]


def _agree(error: BaseException | None, texts: list[str | None], what: str) -> None:
    """Raise if the step failed anywhere."""
    if error is not None:
        raise error
    for rank, text in enumerate(texts):
        if text is not None:
            raise RuntimeError(_elsewhere(what, rank, text))


def _text(error: BaseException | None) -> str | None:
    return None if error is None else f"{type(error).__name__}: {error}"


def decided(collectives: Collectives, decide: Callable[[], T]) -> T:
    """Return on every rank what rank 0 decides; an error of its is raised on every rank."""
    value, error = _attempt(decide) if collectives.rank == 0 else (None, None)
    value, error = collectives.broadcast_object((value, _portable(error)))
    if error is not None:
        raise error
    return value


def _attempt(step: Callable[[], T]) -> tuple[Any, BaseException | None]:
    try:
        return step(), None
    except (KeyboardInterrupt, SystemExit, GeneratorExit):
        raise
    except BaseException as error:  # whatever it is, the other ranks have to hear of it before it goes on;
        return None, error  # what torch.distributed.checkpoint raises is no Exception


def _portable(error: BaseException | None) -> BaseException | None:
    """Return an error that other processes can raise."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error


def _elsewhere(what: str, rank: int, text: str) -> str:
    return message(
        given=f"{what}, on all ranks",
        why=f"rank {rank} failed: {text}",
        allowed="a step that succeeds on every rank",
        do=f"see the traceback of rank {rank}, and try again once its cause is gone",
    )
