"""The parameters that sharding has replaced, so that an optimizer which still holds them is refused.

It would train nothing, and nobody would notice. So it is refused when it is prepared, and when it steps without having
been prepared.
"""

from __future__ import annotations

import weakref
from collections.abc import Container
from functools import partial
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

from accelerate.base.messages import message
from accelerate.strategies.bundle import Bundle


class Replaced:
    """Parameters that no prepared model has any more."""

    def __init__(self) -> None:
        self._known: dict[int, weakref.ref[Any]] = {}
        self._in_order: weakref.WeakSet[Any] = weakref.WeakSet()
        hook = register_optimizer_step_pre_hook(partial(_look_at, weakref.ref(self)))
        weakref.finalize(self, hook.remove)

    def note(self, model: torch.nn.Module) -> None:
        """Remember the parameters of a model that is about to be sharded."""
        self._known.update({id(parameter): weakref.ref(parameter) for parameter in model.parameters()})

    def forget(self, model: torch.nn.Module) -> None:
        """Forget the parameters that a model has kept."""
        for parameter in model.parameters():
            self._known.pop(id(parameter), None)

    def refuse_stale(self, bundle: Bundle) -> None:
        """Refuse optimizers that hold parameters of a model that was sharded before.

        Raises:
            ValueError: there is one.
        """
        models = {id(parameter) for model in bundle.models for parameter in model.parameters()}
        for optimizer in bundle.optimizers:
            self._refuse(optimizer, models)

    def look_at(self, optimizer: torch.optim.Optimizer) -> None:
        """Refuse an optimizer that is about to step, the first time.

        Raises:
            ValueError: it holds parameters of a model that was sharded.
        """
        if optimizer not in self._in_order:
            self._refuse(optimizer)
            self._in_order.add(optimizer)

    def _refuse(self, optimizer: Any, models: Container[int] = ()) -> None:
        held = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        if any(self._is_known(parameter) for parameter in held if id(parameter) not in models):
            raise ValueError(
                message(
                    given=f"a {type(optimizer).__name__} of a model that was sharded before it was prepared",
                    why="sharding has replaced the parameters that the optimizer holds, so it would train nothing",
                    allowed="prepare(model, optimizer) in one call, or an optimizer that is built from the "
                    "prepared model",
                    do="pass the model and its optimizers to `prepare` together",
                )
            )

    def _is_known(self, parameter: torch.Tensor) -> bool:
        known = self._known.get(id(parameter))
        return known is not None and known() is parameter


def _look_at(replaced: weakref.ref[Replaced], optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
    known = replaced()
    if known is not None:
        known.look_at(optimizer)
