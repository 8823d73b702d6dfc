"""The learning-rate scheduler that a prepared script gets back: it moves when its optimizer does.

A schedule is usually written for one process that reads all the data, so by default one call moves it by as many
steps as there are processes, each of which has read a batch. `unit="update"` moves it by one step per call
instead. Schedulers that are driven by a metric are stepped once, with their metric, whatever the unit.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

from accelerate.base.messages import did_you_mean, message
from accelerate.state.gradient import GradientState
from accelerate.state.partial import PartialState

#: What one call of `step` stands for: a batch on every process, or one update of the weights.
UNITS = ("process", "update")


class AcceleratedScheduler:
    """Wraps `scheduler` so that it moves only when the weights are updated.

    A call does nothing while gradients are being accumulated, nor when one of `optimizers` skipped its update
    because gradients overflowed in fp16. Otherwise the schedule moves by `num_processes` steps, and no further
    than its `total_steps` where it has any; by one step with `split_batches` (the batches of all processes
    together are one batch of the loader) or `unit="update"`.

    With `GradientAccumulationPlugin(adjust_scheduler=False)` the schedule is not adjusted to accumulation, for one
    that was written in batches rather than in updates: at an update it moves that far for every call since the
    update before.

    Args:
        scheduler: the scheduler that does the work; found again as `.scheduler`.
        optimizers: the prepared optimizer, or optimizers, whose updates it follows; a list is kept as it is.
        step_with_optimizer: False makes `step` a plain step of the scheduler, always.
        split_batches: whether loaders split their batches among the processes.
        num_processes: how many processes read data; by default those of the run.
        unit: "process" or "update".

    Raises:
        ValueError: an unknown unit.
    """

    def __init__(
        self,
        scheduler: Any,
        optimizers: Any,
        step_with_optimizer: bool = True,
        split_batches: bool = False,
        *,
        num_processes: int | None = None,
        unit: str = "process",
    ) -> None:
        self.scheduler = scheduler
        self.optimizers: Sequence[Any] = optimizers if isinstance(optimizers, list | tuple) else [optimizers]
        self.split_batches = split_batches
        self.step_with_optimizer = step_with_optimizer
        self.gradient_state = GradientState()
        self.num_processes = PartialState().num_processes if num_processes is None else num_processes
        self.unit = check_unit(unit)
        self.takes_metric = takes_metric(scheduler)
        self.accumulated_calls = 0  # since the last update

    def step(self, *args: Any, **kwargs: Any) -> None:
        """Move the schedule, when the weights were just updated; arguments go to the scheduler."""
        if not self.step_with_optimizer:
            self.scheduler.step(*args, **kwargs)
            return
        self.accumulated_calls += 1
        if not self.gradient_state.sync_gradients:
            return
        calls, self.accumulated_calls = self.accumulated_calls, 0
        if self.takes_metric:
            self.scheduler.step(*args, **kwargs)
            return
        for optimizer in self.optimizers:
            if getattr(optimizer, "step_was_skipped", False):
                return
        self._move(1 if self.gradient_state.adjust_scheduler else calls, *args, **kwargs)

    def _move(self, calls: int, *args: Any, **kwargs: Any) -> None:
        """Move the schedule for `calls` calls."""
        # Where a call is a step, a step too many is the script's own mistake and not hidden from it.
        exact = self.split_batches or self.unit == "update"
        for _ in range(calls if exact else calls * self.num_processes):
            if exact or not self._is_over:
                self.scheduler.step(*args, **kwargs)

    @property
    def steps_per_call(self) -> int:
        """By how many steps the schedule moves in one call."""
        one = self.split_batches or self.unit == "update" or self.takes_metric or not self.step_with_optimizer
        return 1 if one else self.num_processes

    @property
    def _is_over(self) -> bool:
        """Whether a schedule of known length has been run through."""
        total = getattr(self.scheduler, "total_steps", None)
        return total is not None and self.scheduler._step_count > total

    def get_last_lr(self) -> list[Any]:
        """Return the learning rates of the latest step, one per parameter group."""
        return self.scheduler.get_last_lr()

    def get_lr(self) -> list[Any]:
        """Return the learning rates of the next step, one per parameter group."""
        return self.scheduler.get_lr()

    def print_lr(self, *args: Any, **kwargs: Any) -> None:
        """Print the learning rates, where the scheduler can."""
        self.scheduler.print_lr(*args, **kwargs)

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the scheduler inside as a dictionary."""
        return self.scheduler.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state dictionary into the scheduler inside."""
        self.scheduler.load_state_dict(state_dict)


def takes_metric(scheduler: Any) -> bool:
    """Whether `scheduler.step` needs an argument, as that of `ReduceLROnPlateau` needs its metric."""
    return any(
        parameter.default is parameter.empty and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
        for parameter in inspect.signature(scheduler.step).parameters.values()
    )


def describe_unit(scheduler: AcceleratedScheduler) -> str:
    """Return a sentence on how far one call of `scheduler.step` moves the schedule, and why."""
    name, steps = type(scheduler.scheduler).__name__, scheduler.steps_per_call
    reasons = {
        "it moves apart from its optimizer (step_scheduler_with_optimizer=False)": not scheduler.step_with_optimizer,
        "it is driven by a metric": scheduler.takes_metric,
        "it counts updates (scheduler_unit='update')": scheduler.unit == "update",
        "the processes share each batch (split_batches=True)": scheduler.split_batches,
        "there is one process": steps == 1,
        f"each of {steps} processes reads a batch, and the schedule is taken to count batches of one process; "
        "write it in updates and pass scheduler_unit='update' to count updates instead": True,
    }
    reason = next(reason for reason, holds in reasons.items() if holds)
    return f"{name}: 1 call = {steps} schedule step{'s' if steps > 1 else ''}, because {reason}."


def check_unit(unit: str) -> str:
    """Return `unit` if it is one.

    Raises:
        ValueError: it isn't.
    """
    if unit not in UNITS:
        raise ValueError(
            message(
                given=f"scheduler unit {unit!r}",
                why="a call of scheduler.step stands for a batch on every process, or for one update",
                allowed=" or ".join(map(repr, UNITS)),
                do=did_you_mean(unit, UNITS),
            )
        )
    return unit
