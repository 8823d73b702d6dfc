"""How far a loader has come, small enough to be saved with every checkpoint.

A loader and the loaders that `skip_first_batches` makes of it share one :class:`Progress`: finishing a skipped epoch
moves the original loader on as well, and saving in the middle of it saves the right place.
"""

from __future__ import annotations

from typing import Any

from accelerate.base.messages import message
from accelerate.data_loader.order import Seeds
from accelerate.data_loader.pace import Pace
from accelerate.data_loader.stateful import Snapshots

VERSION = 1


class Progress:
    """The epoch of a loader, what was given out in it, and the seeds it began with.

    Args:
        seeds: what decides order and workers' randomness.
        epoch: the first epoch.

    `batches` counts those of one process, from where the present number of processes took over; before that, `shift`
    samples (or batches, see `Pace.unit`) of all processes together were given out. Of the batch that comes next, `part`
    parts were, where batches are divided. `workers` is how many worker processes the interrupted pass had that is being
    continued. `snapshots` is the state of a stream that can be
    restored, while one is being read.
    """

    def __init__(self, seeds: Seeds, epoch: int = 0) -> None:
        self.seeds = seeds
        self.epoch = epoch
        self.batches = 0
        self.shift = 0
        self.part = 0
        self.workers: int | None = None
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
        self.batches, self.shift, self.part, self.workers, self.snapshots = skip, 0, 0, None, None
        stream = None
        if resumed is None or resumed["epoch"] != self.epoch:
            self.seeds.begin()
        else:
            self.seeds.resume(resumed["seeds"])
            stream = resumed["stream"]
            if resumed["batches"] or resumed["shift"]:
                self.workers = resumed["workers"]
            if not skip:
                self.batches, self.shift, self.part = resumed["batches"], resumed["shift"], resumed.get("part", 0)
        self.began = True
        return self.batches, stream

    def end(self) -> None:
        """Move on to the next epoch."""
        self.epoch += 1
        self.batches = self.shift = self.part = 0
        self.workers = None
        self.began = False
        self.snapshots = None

    def state(self, pace: Pace) -> dict[str, Any]:
        """Return the place as plain data; after :meth:`load`, the same again until the next pass begins."""
        if self._resumed is not None:
            return {"version": VERSION, **self._resumed}
        return {
            "version": VERSION,
            "epoch": self.epoch,
            "batches": self.batches,
            "shift": self.shift,
            "part": self.part,
            **pace.state(),
            "seeds": self.seeds.state(self.began),
            "stream": None if self.snapshots is None else self.snapshots.before(self.batches),
        }

    def load(self, state: dict[str, Any], pace: Pace) -> None:
        """Let the next pass continue at a place that :meth:`state` described, there or with another size of step.

        Raises:
            ValueError: the state was written by a later version, or its place can't be found at this pace.
        """
        if state.get("version") != VERSION:
            raise ValueError(_of_another_version(state.get("version")))
        if problem := pace.problem(state):
            raise ValueError(_lost(state, problem))
        resumed, before = {**state}, Pace.of(state)
        del resumed["version"]
        if before.step != pace.step and state["batches"]:
            shift = state["shift"] + state["batches"] * before.step
            resumed.update(pace.state(), batches=0, shift=shift, part=0, stream=None)
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


def _lost(state: dict[str, Any], problem: str) -> str:
    return message(
        given=f"the state of a data loader inside epoch {state['epoch']}",
        why=f"{problem}, so the samples that were given out can't be told from the others",
        allowed="a state saved between epochs, or by a loader that reads in the same way",
        do="resume with the number of processes, the batch size and the batch sampler of the run that wrote it",
    )
