"""Training on different numbers of batches per rank: what changes on the side of the data."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from accelerate.base.messages import warn_once


@contextmanager
def even_batches_set(loaders: Iterable[Any], value: bool) -> Iterator[None]:
    """Override `even_batches` of the batch samplers of prepared map-style `loaders` during the body."""
    samplers: list[Any] = [getattr(loader, "batch_sampler", None) for loader in loaders]
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
