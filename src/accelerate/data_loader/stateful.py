"""torchdata's `StatefulDataLoader` as the engine of a prepared loader."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

from torch.utils.data import DataLoader, IterableDataset

from accelerate.base.messages import message
from accelerate.comm.collectives import Collectives

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

    Batches are read before those in front of them are given out, so the loader itself is always ahead of the place that
    is to be saved. A place is saved as the last state before it and the number of batches to read again: of this rank,
    or of each of the ranks that read together, as rank 0 saves for all.

    Args:
        loader: a `StatefulDataLoader`.
        per_step: how many batches are read for one that is given out.
        saved: where to continue; what :meth:`before` returned.
        together: the ranks that read together and call :meth:`meet`; None where one rank reads.
    """

    EVERY = 32

    def __init__(
        self,
        loader: Any,
        per_step: int = 1,
        saved: list[dict[str, Any]] | None = None,
        together: Collectives | None = None,
    ) -> None:
        self.loader = loader
        self.per_step = per_step
        self.together = together
        self.every = max(self.EVERY, per_step)
        self.read = 0
        if saved is not None:
            mine = saved[0 if together is None else together.rank]
            loader.load_state_dict(copy.deepcopy(mine["state"]))  # what it does with it is its own business
            self.read = mine["read"]
        self._batches = iter(loader)
        self._taken: list[list[dict[str, Any]]] = [[] for _ in range(1 if together is None else together.world_size)]
        self._own: list[dict[str, Any]] = self._taken[0] if together is None else []  # not told to the others yet
        self._next = self.read
        self._meeting = 0

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        if self.read >= self._next:
            self._take_down()
        batch = next(self._batches)
        self.read += 1
        return batch

    def _take_down(self) -> None:
        """Take down a copy of the present state; a dataset may go on writing into its own."""
        self._next = self.read + self.every
        state = copy.deepcopy(self.loader.state_dict())
        self._own.append({"read": self.read, "per_step": self.per_step, "state": state})
        if self.together is None:
            self._forget(self.read - 2 * self.per_step)

    def meet(self, steps: int) -> None:
        """Tell the states to all ranks if it is time to; all call this after as many steps of this pass."""
        assert self.together is not None
        if not self.read:
            self._take_down()
        if steps >= self._meeting:
            for taken, new in zip(self._taken, self.together.all_gather_object(self._own), strict=True):
                taken += new
            self._own = []
            self._meeting = steps + self.every
            self._forget(steps - 1)

    def _forget(self, place: int) -> None:
        """Forget the states that nothing from a place on is saved by."""
        for taken in self._taken:
            while len(taken) > 1 and taken[1]["read"] <= place:
                del taken[0]

    def before(self, batches: int) -> list[dict[str, Any]]:
        """Return the last state of every rank that was taken before batch number `batches` was read."""
        place = batches * self.per_step
        return [next(each for each in reversed(taken) if each["read"] <= place) for taken in self._taken]


def fits(saved: list[dict[str, Any]], per_step: int, together: Collectives | None) -> bool:
    """Tell whether saved states are those of as many ranks that read, by as many batches in a step."""
    ranks = 1 if together is None else together.world_size
    return len(saved) == ranks and saved[0]["per_step"] == per_step


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
