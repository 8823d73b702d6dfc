"""Sharding as other libraries call it, or replace it: `fsdp2_prepare_model`.

`accelerate.accelerator` has it as a global name, and asks that name for every model that FSDP2 prepares.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


def fsdp2_prepare_model(accelerator: Any, model: torch.nn.Module) -> torch.nn.Module:
    """Shard `model` in place as the plugin of `accelerator` says, and return it; a sharded one comes back as it is.

    Args:
        accelerator: an `Accelerator` that trains with FSDP2.
        model: a bare model.
    """
    from torch.distributed.fsdp import FSDPModule

    return model if isinstance(model, FSDPModule) else accelerator._strategy.shard(model)
