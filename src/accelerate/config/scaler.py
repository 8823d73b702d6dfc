"""How losses are scaled so that small fp16 gradients don't vanish."""

from __future__ import annotations

from dataclasses import dataclass

from accelerate.config.kwargs import KwargsHandler


@dataclass
class GradScalerKwargs(KwargsHandler):
    """Arguments of `torch.amp.GradScaler`.

    Args:
        init_scale: the factor to begin with.
        growth_factor: what it is multiplied with after `growth_interval` updates without overflow.
        backoff_factor: what it is multiplied with after an overflow.
        growth_interval: how many updates without overflow come before it grows.
        enabled: False makes scaling a no-op.
    """

    init_scale: float = 65536.0
    growth_factor: float = 2.0
    backoff_factor: float = 0.5
    growth_interval: int = 2000
    enabled: bool = True
