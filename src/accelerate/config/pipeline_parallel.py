"""Settings of pipeline parallel: :class:`PipelineParallelConfig`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from accelerate.base.messages import message
from accelerate.config.env import fill
from accelerate.config.option import shared
from accelerate.config.parallelism_settings import ParallelismSettings
from accelerate.config.schedules import SCHEDULES, ScheduleFacts


@dataclass
class PipelineParallelConfig:
    """How a model is cut into stages, and in which order they work.

    What is None comes from PARALLELISM_CONFIG_PP_*, which `accelerate launch` fills, or has the default given here.

    Args:
        schedule: "gpipe" (all forward passes, then all backward passes), "1f1b" (one of each in turn, which holds
            fewer activations; the default), "interleaved" (as 1f1b, with several stages for each process),
            "looped_bfs" (as gpipe, with several stages), "interleaved_zero_bubble", "zbv_zero_bubble" or "dual_pipe_v"
            (which compute the gradients of weights while they would wait). The names that torch has are understood too.
        num_microbatches: in how many pieces a batch is cut; by default as many as there are stages.
        split_points: names of the modules that stages but the first begin with; "auto" for stages of even size, the
            default.
        stages_per_process: how many stages each process has; by default 2 for schedules with several, 1 otherwise.
        loss: computes the loss of what the model returns and of what a script passes as `target`; by default the
            model computes its own.

    Raises:
        ValueError: an unknown schedule, or numbers that it can't work with.
    """

    schedule: str = shared(ParallelismSettings, "pp_schedule", None)
    num_microbatches: int | None = shared(ParallelismSettings, "pp_num_microbatches", None)
    split_points: str | Sequence[str] = shared(ParallelismSettings, "pp_split_points", None)
    stages_per_process: int | None = shared(ParallelismSettings, "pp_stages_per_process", None)
    loss: Callable[[Any, Any], Any] | None = None

    def __post_init__(self) -> None:
        fill(self)
        if self.stages_per_process is None:
            self.stages_per_process = self.facts.stages or 2
        fits = self.facts.stages == self.stages_per_process if self.facts.stages else self.stages_per_process > 1
        if not fits:
            raise ValueError(
                message(
                    given=f"stages_per_process={self.stages_per_process} with schedule={self.schedule!r}",
                    why="a schedule is made for one stage on each process, for two, or for any number from two on",
                    allowed=", ".join(f"{each.stages or '2 or more'} for {name}" for name, each in SCHEDULES.items()),
                    do="leave stages_per_process out",
                )
            )

    @property
    def facts(self) -> ScheduleFacts:
        """What the schedule asks for."""
        return SCHEDULES[self.schedule]
