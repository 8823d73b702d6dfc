"""Keep weights in a small dtype, and convert them to the one that is computed in for each forward."""

from __future__ import annotations

from typing import Any

import torch

from accelerate.hooks.base import ModelHook


class LayerwiseCastingHook(ModelHook):
    """Store the weights of a layer as `storage_dtype`, and compute with them as `compute_dtype`.

    Args:
        storage_dtype: between forwards, such as `torch.float8_e4m3fn`.
        compute_dtype: during the forward, such as `torch.bfloat16`.
        non_blocking: let the conversion overlap with work on the host.
    """

    #: Nothing in it changes from one forward to the next.
    _is_stateful = False

    def __init__(self, storage_dtype: torch.dtype, compute_dtype: torch.dtype, non_blocking: bool) -> None:
        self.storage_dtype = storage_dtype
        self.compute_dtype = compute_dtype
        self.non_blocking = non_blocking

    @property
    def traceable(self) -> bool:
        """False: it converts weights."""
        return False

    def init_hook(self, module: torch.nn.Module) -> torch.nn.Module:
        """Convert the weights to what they are stored as."""
        module.to(dtype=self.storage_dtype, non_blocking=self.non_blocking)
        return module

    def pre_forward(self, module: torch.nn.Module, *args: Any, **kwargs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Convert the weights to what is computed in."""
        module.to(dtype=self.compute_dtype, non_blocking=self.non_blocking)
        return args, kwargs

    def post_forward(self, module: torch.nn.Module, output: Any) -> Any:
        """Convert the weights back."""
        module.to(dtype=self.storage_dtype, non_blocking=self.non_blocking)
        return output

    def forward_failed(self, module: torch.nn.Module) -> None:
        """Convert the weights back."""
        module.to(dtype=self.storage_dtype, non_blocking=self.non_blocking)
