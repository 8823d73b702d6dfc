"""torchdata's `StatefulDataLoader` as the engine of a prepared loader."""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Iterator
from typing import Any

from torch.utils.data import DataLoader, IterableDataset

from accelerate.base.messages import message

SETTINGS = (
    "num_workers",
    "collate_fn",
    "pin_memory",
    "timeout",
    "worker_init_fn",
    "multiprocessing_context",
    "generator",
    "prefetch_factor",
    "persistent_workers",
    "pin_memory_device",
    "in_order",
)


class Snapshots:
    """Reads a loader that can tell its state, and takes that down now and then, before a batch is read.

    A batch is read before the one in front of it is given out, so the loader itself is always ahead of the place that
    is to be saved. A place is saved as the last state before it and the number of batches to read again.

    Args:
        loader: a `StatefulDataLoader`.
        per_step: how many batches are read for one that is given out.
        saved: where to continue; what :meth:`before` returned.
    """

    EVERY = 32

    def __init__(self, loader: Any, per_step: int = 1, saved: dict[str, Any] | None = None) -> None:
        self.loader = loader
        self.per_step = per_step
        self.every = max(self.EVERY, per_step)
        self.read = 0
        if saved is not None:
            loader.load_state_dict(saved["state"])
            self.read = saved["read"]
        self._batches = iter(loader)
        self._taken: deque[dict[str, Any]] = deque(maxlen=2)
        self._next = self.read

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        if self.read == self._next:
            state = copy.deepcopy(self.loader.state_dict())  # a dataset may go on writing into its own
            self._taken.append({"read": self.read, "state": state})
            self._next += self.every
        batch = next(self._batches)
        self.read += 1
        return batch

    def before(self, batches: int) -> dict[str, Any]:
        """Return the last state taken before batch number `batches` was read for being given out."""
        return next(each for each in reversed(self._taken) if each["read"] <= batches * self.per_step)


def stateful_class() -> Any:
    """Return torchdata's loader class.

    Raises:
        ImportError: torchdata is missing or too old.
    """
    try:
        from torchdata.stateful_dataloader import StatefulDataLoader
    except ImportError as error:
        raise ImportError(
            message(
                given="use_stateful_dataloader=True",
                why=f"it needs torchdata's StatefulDataLoader, which does not import ({error})",
                allowed="torchdata 0.8.0 or later",
                do="pip install 'torchdata>=0.8.0', or leave use_stateful_dataloader off",
            )
        ) from error
    return StatefulDataLoader


def stateful_loader(loader: DataLoader) -> DataLoader:
    """Return a `StatefulDataLoader` with the settings of a loader; one that is stateful already as it is."""
    kind = stateful_class()
    if isinstance(loader, kind):
        return loader
    settings = {name: getattr(loader, name) for name in SETTINGS if hasattr(loader, name)}
    if not settings["pin_memory_device"]:  # deprecated, and says so when it is given at all
        del settings["pin_memory_device"]
    if isinstance(loader.dataset, IterableDataset):
        return kind(loader.dataset, batch_size=loader.batch_size, drop_last=loader.drop_last, **settings)
    if loader.batch_sampler is not None:
        return kind(loader.dataset, batch_sampler=loader.batch_sampler, **settings)
    return kind(loader.dataset, batch_size=None, sampler=loader.sampler, **settings)
