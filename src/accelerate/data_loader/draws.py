"""Finding out whether a dataset draws random numbers from global generators, when a pass is resumed.

The samples of a resumed pass are the right ones. What a dataset draws for them (augmentation) is not: worker processes
begin anew, and without workers the generators that are restored are those after a batch that was read ahead.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader

from accelerate.base.messages import warn_once
from accelerate.data_loader.copies import copy_loader

DRAWS_ANEW = (
    "Resuming inside an epoch of a dataset that draws from global random generators: the samples are those of the "
    "uninterrupted run, but not what is drawn for them (augmentation). It is too if the dataset draws from a generator "
    "of its own that it seeds by the index of the sample and the epoch."
)


class Watch:
    """The collate function of a resumed pass, which looks once whether random numbers were drawn for the first batch.

    Args:
        collate: the user's collate function.
        init: the user's `worker_init_fn`.
    """

    def __init__(self, collate: Callable[[Any], Any], init: Callable[[int], Any] | None) -> None:
        self.collate = collate
        self.init = init
        self.before: Any = fingerprint()

    def begin(self, worker: int) -> None:
        """Let a worker process begin; the first one looks."""
        if self.init is not None:
            self.init(worker)
        self.before = fingerprint() if worker == 0 else None

    def __call__(self, samples: Any) -> Any:
        if self.before is not None:
            if self.before != fingerprint():
                warn_once(DRAWS_ANEW)
            self.before = None
        return self.collate(samples)


def fingerprint() -> Any:
    """Return the states of the global random generators that a dataset may draw from, to be compared."""
    _, words, place, *_ = np.random.get_state()
    return torch.get_rng_state().numpy().tobytes(), random.getstate(), np.asarray(words).tobytes(), place


def watched(loader: DataLoader) -> DataLoader:
    """Return a copy of a loader that says if its dataset draws from global random generators."""
    watch = Watch(loader.collate_fn, loader.worker_init_fn)
    return copy_loader(loader, collate_fn=watch, worker_init_fn=watch.begin)
