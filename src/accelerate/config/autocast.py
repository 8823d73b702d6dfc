"""How `torch.autocast` is entered."""

from __future__ import annotations

from dataclasses import dataclass

from accelerate.config.kwargs import KwargsHandler


@dataclass
class AutocastKwargs(KwargsHandler):
    """Arguments of `torch.autocast`.

    Args:
        enabled: False computes a region in full precision inside a mixed precision run.
        cache_enabled: whether weights that were cast are kept for the rest of the region; None is torch's choice.
    """

    enabled: bool = True
    cache_enabled: bool | None = None
