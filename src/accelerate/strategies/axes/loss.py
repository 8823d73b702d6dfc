"""The loss of a pipeline: where it comes from, and how its backward pass hands out gradients that are there already."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from accelerate.base.messages import message
from accelerate.strategies.axes.elsewhere import multiply_


class Returned:
    """What a model returns, learnt while it is traced; not kept in a module, whose changes tracing undoes."""

    def __init__(self) -> None:
        #: Its class, if it is no tensor.
        self.kind: Any = None

    def answer(self, loss: torch.Tensor) -> Any:
        """Return a loss in what the model returns."""
        return loss if self.kind is None else self.kind(loss=loss)


class WithLoss(torch.nn.Module):
    """A model that returns its loss alone.

    Args:
        model: the model.
        loss: see `PipelineParallelConfig`.
        returned: learns what the model returns.
    """

    def __init__(self, model: torch.nn.Module, loss: Callable[[Any, Any], Any] | None, returned: Returned) -> None:
        super().__init__()
        self.model, self.loss, self.returned = model, loss, returned

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        if self.loss is not None:
            target = kwargs.pop("target", None)
            return self.loss(self.model(*args, **kwargs), target)
        found = self.model(*args, **kwargs)
        if not isinstance(found, torch.Tensor):
            self.returned.kind = type(found)
            found = found["loss"] if isinstance(found, dict) else getattr(found, "loss", None)
        if not isinstance(found, torch.Tensor) or found.dim():
            raise ValueError(
                message(
                    given="a model that returns no loss",
                    why="a pipeline computes the gradients of each micro-batch while others are under way",
                    allowed="models that return a loss, and those whose loss pp_handler computes",
                    do="pass labels to the model, or PipelineParallelConfig(loss=function) and target=labels",
                )
            )
        return found


class _Released(torch.autograd.Function):
    """A loss whose backward pass hands out gradients that are there already."""

    @staticmethod
    def forward(
        ctx: Any, loss: torch.Tensor, gradients: list[torch.Tensor], factor: torch.Tensor, *parameters: torch.Tensor
    ) -> torch.Tensor:
        ctx.gradients, ctx.factor = gradients, factor
        return loss.clone()

    @staticmethod
    def backward(ctx: Any, *factors: torch.Tensor) -> Any:
        gradients, ctx.gradients = ctx.gradients, None  # parameters take over what nobody else holds
        if gradients is None:
            raise RuntimeError(_handed_out())
        multiply_(gradients, factors[0] * ctx.factor)
        return (None, None, None, *gradients)


class Release(torch.nn.Module):
    """Hands the gradients of a pipeline to the parameters of this rank; wrapped to average them with replicas."""

    def __init__(self, parameters: Sequence[torch.nn.Parameter]) -> None:
        super().__init__()
        self.held = torch.nn.ParameterList(parameters)

    def forward(self, loss: torch.Tensor, gradients: list[torch.Tensor], factor: torch.Tensor) -> Any:
        """Return `loss`, whose backward pass gives the parameters `gradients` times `factor`."""
        anchor = torch.zeros_like(loss, requires_grad=True)  # a stage without anything to train has a backward pass too
        return _Released.apply(loss, [*gradients, torch.zeros_like(loss)], factor, *self.held, anchor)


def _handed_out() -> str:
    return message(
        given="a second backward pass of the loss of one batch",
        why="the gradients of a pipeline are computed once, when the model is called, and were handed out already",
        allowed="one backward pass for each call of the model",
        do="call the model again, or backward once with the sum of what depends on its loss",
    )
