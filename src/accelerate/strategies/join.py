"""Training on different numbers of batches per rank: ranks that end first answer the collectives of the others."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from accelerate.base.messages import warn_once
from accelerate.strategies.base import Strategy


@contextmanager
def joined(strategy: Strategy, joinables: Sequence[Any], loaders: Iterable[Any], even_batches: bool) -> Iterator[None]:
    """Let ranks run out of batches at different times inside the context.

    Args:
        strategy: the strategy of the run; one whose models can't be joined warns and changes nothing.
        joinables: prepared models, and optimizers that can be joined.
        loaders: prepared loaders, of which the map-style ones take up `even_batches` meanwhile.
        even_batches: whether loaders give every rank equally many batches, so that there is nothing to join.
    """
    if not strategy.joinable or strategy.axes:
        if strategy.runtime.topology.world_size > 1:
            warn_once(f"join_uneven_inputs has no effect with {strategy.label()}: its models can't be joined.")
        yield
        return
    with even_batches_set(loaders, even_batches), strategy.join(joinables, enable=not even_batches):
        yield


@contextmanager
def even_batches_set(loaders: Iterable[Any], value: bool) -> Iterator[None]:
    """Override `even_batches` of the batch samplers of prepared map-style `loaders` during the body."""
    samplers = [_sharing(loader) for loader in loaders]
    changed = [(sampler, sampler.even_batches) for sampler in samplers if hasattr(sampler, "even_batches")]
    if len(changed) < len(samplers):
        warn_once(
            "join_uneven_inputs can't change even_batches of loaders whose batches are not dealt out by index; "
            "they stay as they are."
        )
    for sampler, _ in changed:
        sampler.even_batches = value
    try:
        yield
    finally:
        for sampler, before in changed:
            sampler.even_batches = before


def _sharing(loader: Any) -> Any:
    """Return the sampler that deals out a loader: of batches, or of single items where it has no batch size."""
    batch_sampler = getattr(loader, "batch_sampler", None)
    return getattr(loader, "sampler", None) if batch_sampler is None else batch_sampler
