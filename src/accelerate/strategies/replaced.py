"""The parameters that sharding has replaced, so that an optimizer which still holds them is refused."""

from __future__ import annotations

import weakref
from typing import Any

import torch

from accelerate.base.messages import message
from accelerate.strategies.bundle import Bundle


class Replaced:
    """Parameters that no prepared model has any more."""

    def __init__(self) -> None:
        self._known: dict[int, weakref.ref[Any]] = {}

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
