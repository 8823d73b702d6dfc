"""How far a loader has come, small enough to be saved with every checkpoint.

A loader and the loaders that `skip_first_batches` makes of it share one :class:`Progress`: finishing a skipped epoch
moves the original loader on as well, and saving in the middle of it saves the right place.
"""

from __future__ import annotations

from typing import Any

from accelerate.base.messages import message
from accelerate.data_loader.order import Seeds
from accelerate.data_loader.stateful import Snapshots

VERSION = 1


class Progress:
    """The epoch of a loader, what was given out in it, and the seeds it began with.

    Args:
        seeds: what decides order and workers' randomness.
        epoch: the first epoch.

    `batches` counts those of one process, from where the present number of processes took over; before that, `shift`
    samples of all processes together were given out. `snapshots` is the state of a stream that can be restored, while
    one is being read.
    """

    def __init__(self, seeds: Seeds, epoch: int = 0) -> None:
        self.seeds = seeds
        self.epoch = epoch
        self.batches = 0
        self.shift = 0
        self.began = False  # the seeds of the present epoch are drawn
        self.snapshots: Snapshots | None = None
        self._resumed: dict[str, Any] | None = None

    def begin(self, skip: int) -> tuple[int, list[dict[str, Any]] | None]:
        """Begin a pass and return at which batch it starts, with the state to restore its stream from, if there is one.

        Args:
            skip: how many batches the loader is to leave out, counted from the start of the epoch; 0 continues where a
                loaded state says.
        """
        resumed, self._resumed = self._resumed, None
        self.batches, self.shift, self.snapshots = skip, 0, None
        stream = None
        if resumed is None or resumed["epoch"] != self.epoch:
            self.seeds.begin()
        else:
            self.seeds.resume(resumed["seeds"])
            stream = resumed["stream"]
            if not skip:
                self.batches, self.shift = resumed["batches"], resumed["shift"]
        self.began = True
        return self.batches, stream

    def end(self) -> None:
        """Move on to the next epoch."""
        self.epoch += 1
        self.batches = self.shift = 0
        self.began = False
        self.snapshots = None

    def state(self, samples_per_batch: int | None, sources: int | None = None) -> dict[str, Any]:
        """Return the place as plain data; after :meth:`load`, the same again until the next pass begins.

        Args:
            samples_per_batch: the samples that all processes together get in one step; None when that is not known.
            sources: among how many processes the sources of a stream are divided; None where they are not.
        """
        if self._resumed is not None:
            return {"version": VERSION, **self._resumed}
        return {
            "version": VERSION,
            "epoch": self.epoch,
            "batches": self.batches,
            "shift": self.shift,
            "samples_per_batch": samples_per_batch,
            "sources": sources,
            "seeds": self.seeds.state(self.began),
            "stream": None if self.snapshots is None else self.snapshots.before(self.batches),
        }

    def load(self, state: dict[str, Any], samples_per_batch: int | None, sources: int | None = None) -> None:
        """Let the next pass continue at a place that :meth:`state` described, there or with another size of step.

        Raises:
            ValueError: the state was written by a later version, or its step can't be compared with this one.
        """
        if state.get("version") != VERSION:
            raise ValueError(_of_another_version(state.get("version")))
        if state["sources"] != sources and state["batches"]:
            raise ValueError(_other_sources(state["sources"], sources))
        resumed, before = {**state}, state["samples_per_batch"]
        del resumed["version"]
        if before != samples_per_batch and state["batches"]:
            if before is None or samples_per_batch is None:
                raise ValueError(_not_comparable(before, samples_per_batch))
            resumed["shift"] = state["shift"] + state["batches"] * before
            resumed.update(batches=0, samples_per_batch=samples_per_batch, stream=None)
        self._resumed = resumed
        self.epoch = state["epoch"]
        self.batches = self.shift = 0
        self.began = False

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "snapshots": None}


def _of_another_version(version: Any) -> str:
    return message(
        given=f"the state of a data loader of version {version}",
        why=f"this release reads version {VERSION}",
        allowed="a state written by this release",
        do="resume with the release that saved the checkpoint, or a later one",
    )


def _other_sources(before: int | None, now: int | None) -> str:
    how = ["read as a whole" if each is None else f"divided among {each} processes" for each in (before, now)]
    return message(
        given=f"the place inside an epoch of a stream that was {how[0]}, for one that is {how[1]}",
        why="each process has read a part of its own shards, which are others now",
        allowed="a state saved between epochs, or by as many processes",
        do="resume with as many processes as when the checkpoint was written",
    )


def _not_comparable(before: int | None, now: int | None) -> str:
    return message(
        given=f"the state of a data loader with {before} samples per step, for one with {now}",
        why="batches of any size can't be counted in samples, so the place is not known here",
        allowed="a state saved between epochs, or with the same batch sampler and number of processes",
        do="resume with as many processes as when the checkpoint was written",
    )
