"""Mixed precision as objects, for code that brings its own loop."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from accelerate.config.autocast import AutocastKwargs
from accelerate.config.enums import DistributedType
from accelerate.logging import get_logger
from accelerate.precision.select import select_precision
from accelerate.state import AcceleratorState

__all__ = ["get_grad_scaler", "get_mixed_precision_context_manager", "logger"]

logger = get_logger(__name__)


def get_mixed_precision_context_manager(
    native_amp: bool = False, autocast_kwargs: AutocastKwargs | None = None
) -> AbstractContextManager[Any]:
    """Return a context that computes in the precision of the `Accelerator`, or does nothing without `native_amp`."""
    if not native_amp:
        return nullcontext()
    state = AcceleratorState()
    return select_precision(state.mixed_precision, state.device).forward_context(autocast_kwargs)


def get_grad_scaler(distributed_type: DistributedType | None = None, **kwargs: Any) -> torch.amp.GradScaler:
    """Return a gradient scaler for the device of the run.

    Args:
        distributed_type: kept for the signature; the scaler of sharded training comes from its strategy.
        kwargs: arguments of `torch.amp.GradScaler`.
    """
    return torch.amp.GradScaler(AcceleratorState().device.type, **kwargs)
