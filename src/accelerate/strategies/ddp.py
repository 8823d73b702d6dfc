"""Data parallel replicas: `torch.nn.parallel.DistributedDataParallel`, on every kind of device.

Each rank holds the whole model and averages gradients with the others during the backward pass. Frozen models have
nothing to communicate and are not wrapped.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, final

import torch
from torch.distributed.algorithms.join import Join, Joinable

from accelerate.base.environ import parse_flag_from_env
from accelerate.config.enums import DistributedType
from accelerate.strategies.base import Setup, Strategy, refuse_spread_models
from accelerate.strategies.bundle import Bundle


@final
class DataParallel(Strategy):
    """Replicas that average their gradients."""

    name = "ddp"
    joinable = True
    replicates = True

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self.bypass_device_map = parse_flag_from_env("ACCELERATE_BYPASS_DEVICE_MAP")

    def label(self) -> DistributedType:
        return DistributedType(self.runtime.device.spec.label)

    def check(self, bundle: Bundle) -> None:
        super().check(bundle)
        if not self.bypass_device_map:
            refuse_spread_models(bundle)

    def wrap(self, model: torch.nn.Module) -> torch.nn.Module:
        if isinstance(model, torch.nn.parallel.DistributedDataParallel):
            return model
        if not any(parameter.requires_grad for parameter in model.parameters()):
            return model
        handler = self.setup.ddp_handler
        kwargs = handler.to_kwargs() if handler is not None else {}
        wrapped = torch.nn.parallel.DistributedDataParallel(model, **self._devices(), **kwargs)
        if handler is not None:
            handler.register_comm_hook(wrapped)
        return wrapped

    def _devices(self) -> dict[str, Any]:
        """Return the device arguments of `DistributedDataParallel`: none for CPU and for models with their own map."""
        device = self.runtime.device.torch_device
        if device.type == "cpu" or self.bypass_device_map:
            return {}
        return {"device_ids": [device.index], "output_device": device.index}

    def no_sync(self, model: torch.nn.Module) -> AbstractContextManager[Any]:
        no_sync = getattr(model, "no_sync", None)
        return no_sync() if no_sync is not None else super().no_sync(model)

    def sync_in_backward(self, model: torch.nn.Module) -> AbstractContextManager[Any]:
        return sync_in_backward(model)

    def join(self, models: Sequence[Any], enable: bool) -> AbstractContextManager[Any]:
        joinables = [model for model in models if isinstance(model, Joinable)]
        return Join(joinables, enable=enable, throw_on_early_termination=False)


@contextmanager
def sync_in_backward(model: torch.nn.Module) -> Iterator[None]:
    """Make the next backward pass of `model` average gradients, although its forward ran under `no_sync`."""
    if not isinstance(model, torch.nn.parallel.DistributedDataParallel):
        yield
        return
    before = model.require_backward_grad_sync, model.require_forward_param_sync
    model.require_backward_grad_sync = model.require_forward_param_sync = True
    # The forward pass under `no_sync` did not arm the reducer; with no outputs given every parameter is expected.
    model.reducer.prepare_for_backward([])
    try:
        yield
    finally:
        model.require_backward_grad_sync, model.require_forward_param_sync = before
