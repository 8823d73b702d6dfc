"""How a loader takes its steps, which decides whether a place that another one has saved can be found.

A place is saved as a number of steps. With another number of processes a step has another size, so the place is counted
in samples, or in whole batches where those may be of any size. The order of a stream may depend on who reads it, too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Pace:
    """What all processes together take of a loader in one step.

    Args:
        samples_per_step: how many samples; None where batches are of any size.
        batches_per_step: how many batches of the user's loader.
        readers: among how many processes a stream is divided, where its order depends on that: each reads its own
            sources, or several workers of each process deal out a part each. None everywhere else.
        workers: how many worker processes read a stream, which decides its order; None for data that has indices.
    """

    samples_per_step: int | None = 1
    batches_per_step: int = 1
    readers: int | None = None
    workers: int | None = None

    def state(self) -> dict[str, Any]:
        """Return the fields by name."""
        return asdict(self)

    @classmethod
    def of(cls, state: Mapping[str, Any]) -> Pace:
        """Return the pace of the loader that saved a place."""
        return cls(**{name: state[name] for name in cls.__dataclass_fields__})

    @property
    def unit(self) -> str:
        """In what a place is counted that is to be found by steps of another size."""
        return "batches" if self.samples_per_step is None else "samples"

    @property
    def step(self) -> int:
        """The size of a step in that unit."""
        return self.batches_per_step if self.samples_per_step is None else self.samples_per_step

    @property
    def batch_size(self) -> float:
        """The samples in a batch of the user's loader; 1 where they are not counted."""
        return 1 if self.samples_per_step is None else self.samples_per_step / self.batches_per_step

    def problem(self, saved: Mapping[str, Any]) -> str | None:
        """Tell why a saved place inside an epoch can't be found at this pace; None where it can."""
        before = Pace.of(saved)
        if not (saved["batches"] or saved["shift"]):
            return None
        if before.unit != self.unit:
            return f"its place was counted in {before.unit}, and this loader counts in {self.unit}"
        if before.readers != self.readers:
            read = ["as a whole" if each.readers is None else f"by {each.readers} processes" for each in (before, self)]
            return f"its stream was read {read[0]} and is read {read[1]} now, in another order"
        sizes = before.batch_size, self.batch_size
        if sizes[0] != sizes[1] and (self.readers is not None or (self.workers or 0) > 1):
            return f"its stream was read in batches of {sizes[0]:g} and is read in batches of {sizes[1]:g} now"
        return None
