"""What strategies share whose models have DTensors for parameters: torch's composable modules, norms over meshes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from accelerate.strategies import norms
from accelerate.strategies.axes.select import combined
from accelerate.strategies.base import Strategy
from accelerate.strategies.fsdp2.sharding import units_in
from accelerate.strategies.fsdp2.states import sharded_state
from accelerate.strategies.unwrap import peel


class DTensorStrategy(Strategy):
    """A strategy whose parameters are DTensors, in modules that reduce their own gradients."""

    @contextmanager
    def no_sync(self, model: torch.nn.Module) -> Iterator[None]:
        modules = list(units_in(model))
        for module in modules:
            module.set_requires_gradient_sync(False, recurse=False)
        try:
            yield
        finally:
            for module in modules:
                module.set_requires_gradient_sync(True, recurse=False)

    def clip_grad_norm_(
        self, parameters: Iterable[torch.Tensor], max_norm: float, norm_type: float = 2
    ) -> torch.Tensor:
        return norms.clip_grad_norm_(parameters, max_norm, norm_type, combined(self.axes, norm_type))

    def clip_grad_value_(self, parameters: Iterable[torch.Tensor], clip_value: float) -> None:
        norms.clip_grad_value_(parameters, clip_value)

    def weights(self, model: torch.nn.Module) -> dict[str, Any]:
        return sharded_state(peel(model, parallel=False)[0])
