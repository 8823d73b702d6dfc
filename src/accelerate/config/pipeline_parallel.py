"""Settings of pipeline parallel: :class:`PipelineParallelConfig`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from accelerate.base.messages import did_you_mean, message

#: The order in which the stages of a pipeline work on the micro-batches.
SCHEDULES = ("gpipe", "1f1b", "interleaved")


@dataclass
class PipelineParallelConfig:
    """How a model is cut into stages, and in which order they work.

    Args:
        schedule: "gpipe" (all forward passes, then all backward passes), "1f1b" (one of each in turn, which holds
            fewer activations) or "interleaved" (as 1f1b, with several stages for each process).
        num_microbatches: in how many pieces a batch is cut; by default as many as there are stages.
        split_points: names of the modules that stages but the first begin with; "auto" for stages of even size.
        stages_per_process: how many stages each process has; by default 2 for "interleaved", 1 otherwise.
        loss: computes the loss of what the model returns and of what a script passes as `target`; by default the
            model computes its own.

    Raises:
        ValueError: an unknown schedule, or numbers that it can't work with.
    """

    schedule: str = "1f1b"
    num_microbatches: int | None = None
    split_points: str | Sequence[str] = "auto"
    stages_per_process: int | None = None
    loss: Callable[[Any, Any], Any] | None = None

    def __post_init__(self) -> None:
        if self.schedule not in SCHEDULES:
            raise ValueError(
                message(
                    given=f"schedule={self.schedule!r}",
                    why="no schedule for pipelines has this name",
                    allowed=", ".join(SCHEDULES),
                    do=did_you_mean(self.schedule, SCHEDULES),
                )
            )
        interleaved = self.schedule == "interleaved"
        if self.stages_per_process is None:
            self.stages_per_process = 2 if interleaved else 1
        if (self.stages_per_process > 1) != interleaved or self.stages_per_process < 1:
            raise ValueError(
                message(
                    given=f"stages_per_process={self.stages_per_process} with schedule={self.schedule!r}",
                    why="only the interleaved schedule has several stages on a process, and it needs them",
                    allowed="2 or more for 'interleaved', 1 for the others",
                    do="leave stages_per_process out",
                )
            )
        if self.num_microbatches is not None and self.num_microbatches < 1:
            raise ValueError(
                message(
                    given=f"num_microbatches={self.num_microbatches}",
                    why="a batch is cut into that many pieces",
                    allowed="whole numbers from 1 on",
                    do="leave it out for one for each stage",
                )
            )
