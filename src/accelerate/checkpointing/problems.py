"""What keeps an object from being restored, in the words of a report: a line for each thing that is wrong."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from accelerate.checkpointing.source import Source


def unreadable(source: Source, name: str) -> list[str]:
    """Return why a file that `torch.save` wrote can't be read, a line or none."""
    if not source.has(name):
        return [f"{name} is missing"]
    try:
        source.object(name)
    except Exception as error:  # whatever it is goes into the report, with everything else that is wrong
        reason = str(error).strip().splitlines() or [type(error).__name__]
        if "WeightsUnpickler" in str(error) or "weights_only" in str(error):
            return [f"{name} holds more than plain data: {_blamed(str(error))}"]
        return [f"{name} can't be read: {reason[0]}"]
    return []


def _blamed(text: str) -> str:
    """Return the sentence about what a file would have to execute, out of torch's long message."""
    line = next((line for line in text.splitlines() if "Unsupported" in line or "GLOBAL" in line), "")
    return (
        f"{line.partition('WeightsUnpickler error:')[2].strip() or line.strip()} "
        "(allow a class of yours with torch.serialization.add_safe_globals([Class]), or, if you trust whoever wrote "
        "the checkpoint, everything with load_state(load_kwargs={'weights_only': False}))"
    )


def shortened(names: Sequence[str], limit: int = 8) -> str:
    """Return names in a line, the first few of many."""
    rest = len(names) - limit
    return ", ".join(names[:limit]) + (f" and {rest} more" if rest > 0 else "")


def shape_of(value: Any) -> tuple[int, ...] | None:
    """Return the shape of a tensor, None for anything else."""
    return tuple(value.shape) if isinstance(value, torch.Tensor) else None
