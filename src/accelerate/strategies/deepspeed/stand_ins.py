"""Objects in the places of optimizers and schedulers, for scripts in which DeepSpeed's engine has those.

The engine updates weights and moves schedules within its backward pass. Scripts keep the lines that do so elsewhere:
they get objects for which these lines do nothing, or that only say what the engine is to build.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from accelerate.optimizer import AcceleratedOptimizer
from accelerate.scheduler import AcceleratedScheduler


class DummyOptim:
    """What an optimizer is to be built from, where the configuration of DeepSpeed says which one.

    Args:
        params: parameters or groups of them.
        lr: learning rate.
        weight_decay: factor of weight decay.
        **kwargs: whatever else the optimizer takes.
    """

    def __init__(self, params: Any, lr: float = 0.001, weight_decay: float = 0, **kwargs: Any) -> None:
        self.params, self.lr, self.weight_decay, self.kwargs = params, lr, weight_decay, kwargs


class DummyScheduler:
    """What a scheduler is to be built from, where the configuration of DeepSpeed says which one.

    Args:
        optimizer: the optimizer, or the :class:`DummyOptim` in its place.
        total_num_steps: how long the schedule is, in updates.
        warmup_num_steps: how many of them warm up.
        lr_scheduler_callable: builds the scheduler from the optimizer that the engine has built.
        **kwargs: whatever else the scheduler takes.
    """

    def __init__(
        self,
        optimizer: Any,
        total_num_steps: int | None = None,
        warmup_num_steps: int = 0,
        lr_scheduler_callable: Callable[[Any], Any] | None = None,
        **kwargs: Any,
    ) -> None:
        self.optimizer, self.total_num_steps, self.warmup_num_steps = optimizer, total_num_steps, warmup_num_steps
        self.lr_scheduler_callable, self.kwargs = lr_scheduler_callable, kwargs


class DeepSpeedOptimizerWrapper(AcceleratedOptimizer):
    """An optimizer of DeepSpeed's engine, which steps and clears gradients by itself.

    Args:
        optimizer: the engine's optimizer.
    """

    def __init__(self, optimizer: Any) -> None:
        super().__init__(optimizer, device_placement=False, scaler=None)

    def zero_grad(self, set_to_none: bool | None = None) -> None:
        """Do nothing: the engine clears gradients after an update."""

    def step(self) -> None:  # type: ignore[override]
        """Do nothing: the engine updates weights in its backward pass."""

    @property
    def step_was_skipped(self) -> bool:
        """Whether the last update was left out because gradients overflowed."""
        return bool(getattr(self.optimizer, "overflow", False))


class DeepSpeedSchedulerWrapper(AcceleratedScheduler):
    """A scheduler of DeepSpeed's engine, which moves it by itself.

    Args:
        scheduler: the engine's scheduler.
        optimizers: its optimizer, or several.
    """

    def __init__(self, scheduler: Any, optimizers: Any) -> None:
        super().__init__(scheduler, optimizers)

    def step(self) -> None:
        """Do nothing: the engine moves the schedule with each update."""
