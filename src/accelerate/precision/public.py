"""Two functions of `accelerate.utils` for scripts that do their own mixed precision: an autocast context and a scaler.

They are called from outside, with no `Accelerator` at hand, so they ask the states of the process.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

import torch

from accelerate.config.enums import DistributedType
from accelerate.precision.select import select_precision
from accelerate.state.accelerator_state import AcceleratorState
from accelerate.state.partial import PartialState

if TYPE_CHECKING:
    from accelerate.config.autocast import AutocastKwargs


def get_mixed_precision_context_manager(
    native_amp: bool = False, autocast_kwargs: AutocastKwargs | None = None
) -> AbstractContextManager[Any]:
    """Return a context in which operations compute in the precision of the process's `Accelerator`.

    Args:
        native_amp: False returns a context that changes nothing.
        autocast_kwargs: `enabled` and `cache_enabled` of `torch.autocast`.
    """
    if not native_amp:
        return nullcontext()
    state = AcceleratorState()
    return select_precision(state.mixed_precision, state.device).forward_context(autocast_kwargs)


def get_grad_scaler(distributed_type: DistributedType | None = None, **kwargs: Any) -> Any:
    """Return a gradient scaler for the device of the process.

    Args:
        distributed_type: with FSDP the scaler agrees with the other ranks on what overflowed.
        kwargs: arguments of `torch.amp.GradScaler`.
    """
    device_type = PartialState().device.type
    if distributed_type != DistributedType.FSDP:
        return torch.amp.GradScaler(device_type, **kwargs)
    from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler

    return ShardedGradScaler(device_type, **kwargs)
