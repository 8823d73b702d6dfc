"""Full precision, which is also the interface: every hook does what plain torch would do, or nothing.

A precision is asked for four things in a training step: the forward pass (wrapped once by `prepare_model`), the
backward pass, unscaling before gradients are clipped, and the step of an optimizer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from accelerate.base.messages import message
from accelerate.precision.spec import PrecisionSpec

if TYPE_CHECKING:
    from accelerate.config.autocast import AutocastKwargs
    from accelerate.config.scaler import GradScalerKwargs


@dataclass(frozen=True)
class PrecisionOptions:
    """What a person may say about a precision besides its name.

    Args:
        autocast: `enabled` and `cache_enabled` of `torch.autocast`, read when a model is prepared.
        scaler: settings of the gradient scaler.
        keep_output_dtype: leave the outputs of models in the dtype they were computed in.
    """

    autocast: AutocastKwargs | None = None
    scaler: GradScalerKwargs | None = None
    keep_output_dtype: bool = False


class Precision:
    """Computes in the dtype the tensors have.

    Args:
        device: where models run.
        options: what a person said besides the name of the precision.

    `scaler` is the gradient scaler, None where none is used; it can be replaced.
    """

    spec: PrecisionSpec = PrecisionSpec("no")

    def __init__(self, device: torch.device, options: PrecisionOptions | None = None) -> None:
        self.device = device
        self.options = options or PrecisionOptions()
        self.scaler: Any = None

    def prepare_model(self, model: torch.nn.Module, device: object = None, *, autocast: bool = True) -> torch.nn.Module:
        """Make the forward pass of `model` compute in this precision; changed in place and returned.

        Args:
            device: the device the model is on; precisions that convert layers ask it what they may use.
            autocast: False where a strategy casts by itself.
        """
        return model

    def forward_context(self, handler: AutocastKwargs | None = None) -> AbstractContextManager[Any]:
        """Return a context whose operations compute in this precision; `handler` replaces the options of autocast."""
        return nullcontext()

    def watch(self, optimizer: torch.optim.Optimizer) -> None:
        """Learn of an optimizer whose steps will come through this precision."""

    def backward(self, loss: torch.Tensor, **kwargs: Any) -> None:
        """Compute the gradients of `loss`."""
        loss.backward(**kwargs)

    def unscale(self, optimizers: Iterable[torch.optim.Optimizer]) -> None:
        """Bring the gradients of `optimizers`, prepared or not, to their true size; harmless when repeated."""

    def step(self, optimizer: torch.optim.Optimizer, closure: Callable[[], Any] | None = None) -> tuple[Any, bool]:
        """Step `optimizer`, which is not a prepared one; return its result, and whether the update was skipped."""
        return (optimizer.step() if closure is None else optimizer.step(closure)), False


def not_a_scalar(loss: torch.Tensor) -> str:
    """Return the message for a loss of several values, whose gradient is not defined."""
    return message(
        given=f"a loss of shape {tuple(loss.shape)}",
        why="a gradient is taken of one value, and this tensor has several",
        allowed="a scalar, or any tensor together with gradient=...",
        do="reduce it first, for example with loss.mean()",
    )
