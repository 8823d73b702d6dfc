"""How many micro-batches make one update of the weights."""

from __future__ import annotations

from dataclasses import dataclass

from accelerate.config.kwargs import KwargsHandler


@dataclass
class GradientAccumulationPlugin(KwargsHandler):
    """The rules of gradient accumulation; read live, so that a change takes effect at the next `accumulate`.

    Args:
        num_steps: how many micro-batches make one update.
        adjust_scheduler: whether a scheduler steps once per update rather than once per micro-batch.
        sync_with_dataloader: whether the last batch of a loader always ends a window.
        sync_each_batch: whether gradients are summed over processes at every batch, which saves memory in sharded modes
            and costs communication.
        scale_short_window: whether the micro-batches of a short last window are divided by how many there really are,
            rather than by `num_steps`.
    """

    num_steps: int | None = None
    adjust_scheduler: bool = True
    sync_with_dataloader: bool = True
    sync_each_batch: bool = False
    scale_short_window: bool = False
