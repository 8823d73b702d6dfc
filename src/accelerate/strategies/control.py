"""What a script asks of prepared models: the methods about models that `Accelerator` inherits."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from accelerate.checkpointing.control import CheckpointControl
from accelerate.strategies.base import is_spread
from accelerate.strategies.join import joined
from accelerate.strategies.unwrap import extract_model_from_parallel

if TYPE_CHECKING:
    import torch

    from accelerate.strategies.base import Strategy


class ModelControl(CheckpointControl):
    """Questions about models, for the class that holds what is prepared."""

    if TYPE_CHECKING:  # what a class that inherits from this one has to bring
        _strategy: Strategy
        _dataloaders: list[Any]
        even_batches: bool

    def unwrap_model(
        self, model: torch.nn.Module, keep_fp32_wrapper: bool = True, keep_torch_compile: bool = True
    ) -> torch.nn.Module:
        """Return the model without what `prepare` put around it."""
        return extract_model_from_parallel(model, keep_fp32_wrapper, keep_torch_compile)

    def get_state_dict(self, model: torch.nn.Module, unwrap: bool = True) -> dict[str, Any]:
        """Return the full state dict of a prepared model."""
        return self._strategy.state_dict(model, unwrap=unwrap)

    def verify_device_map(self, model: torch.nn.Module) -> bool:
        """Return whether `model` is spread over several devices."""
        return is_spread(model)

    def join_uneven_inputs(
        self, joinables: list[Any], even_batches: bool | None = None
    ) -> AbstractContextManager[None]:
        """Train although ranks have different numbers of batches: those that end first answer the others' collectives.

        Args:
            joinables: prepared models (and `torch.distributed.algorithms.Joinable` optimizers).
            even_batches: overrides this setting of the prepared map-style loaders inside the context.
        """
        even = self.even_batches if even_batches is None else even_batches
        return joined(self._strategy, joinables, self._dataloaders, even)
