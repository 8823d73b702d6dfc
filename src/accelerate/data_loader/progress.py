"""How far a loader has come, small enough to be saved with every checkpoint.

A loader and the loaders that `skip_first_batches` makes of it share one :class:`Progress`: finishing a skipped epoch
moves the original loader on as well, and saving in the middle of it saves the right place.
"""

from __future__ import annotations

from typing import Any

from accelerate.base.messages import message
from accelerate.data_loader.order import Seeds

VERSION = 1


class Progress:
    """The epoch of a loader, the batches given out in it, and the seeds it began with.

    Args:
        seeds: what decides order and workers' randomness.
        epoch: the first epoch.
    """

    def __init__(self, seeds: Seeds, epoch: int = 0) -> None:
        self.seeds = seeds
        self.epoch = epoch
        self.batches = 0
        self.began = False  # the seeds of the present epoch are drawn
        self._resumed: dict[str, Any] | None = None

    def begin(self, skip: int) -> int:
        """Begin a pass and return at which batch of the epoch it starts.

        Args:
            skip: how many batches the loader is to leave out, counted from the start of the epoch; 0 continues where a
                loaded state says.
        """
        resumed, self._resumed = self._resumed, None
        if resumed is None or resumed["epoch"] != self.epoch:
            self.seeds.begin()
            self.batches = skip
        else:
            if resumed["seeds"] is None:
                self.seeds.begin()
            else:
                self.seeds.resume(resumed["seeds"])
            self.batches = skip or resumed["batches"]
        self.began = True
        return self.batches

    def end(self) -> None:
        """Move on to the next epoch."""
        self.epoch += 1
        self.batches = 0
        self.began = False

    def state(self) -> dict[str, Any]:
        """Return the place as plain data; after `load`, the same again until the next pass begins."""
        if self._resumed is not None:
            return {"version": VERSION, **self._resumed}
        seeds = self.seeds.state() if self.began else None
        return {"version": VERSION, "epoch": self.epoch, "batches": self.batches, "seeds": seeds}

    def load(self, state: dict[str, Any]) -> None:
        """Let the next pass continue at a place that :meth:`state` described.

        Raises:
            ValueError: the state was written by a later version.
        """
        if state.get("version") != VERSION:
            raise ValueError(
                message(
                    given=f"the state of a data loader of version {state.get('version')}",
                    why=f"this release reads version {VERSION}",
                    allowed="a state written by this or an earlier release",
                    do="resume with the release that saved the checkpoint, or a later one",
                )
            )
        self._resumed = {key: state[key] for key in ("epoch", "batches", "seeds")}
        self.epoch = state["epoch"]
        self.batches = 0
        self.began = False
