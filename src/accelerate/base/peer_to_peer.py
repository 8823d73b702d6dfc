"""Which NVIDIA GPUs claim direct transfers that they don't have, and how NCCL is told not to try.

The RTX 40 series has no peer-to-peer transfers; drivers before 550.40.07 report them nevertheless, NCCL believes that,
and a run of several processes hangs.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

AFFECTED = ("RTX 40",)
FIRST_SOUND_DRIVER = "550.40.07"
#: What tells NCCL to use neither peer-to-peer transfers nor InfiniBand.
SWITCHES = ("NCCL_P2P_DISABLE", "NCCL_IB_DISABLE")


def is_affected(names: Iterable[str]) -> bool:
    """Return whether one of the GPUs called `names` is of an affected series."""
    return any(series in name for series in AFFECTED for name in names)


def is_sound(driver: str) -> bool:
    """Return whether a driver of this version tells the truth about peer-to-peer transfers; "" is unknown: no."""
    return re.fullmatch(r"\d+(\.\d+)+", driver) is not None and _parts(driver) >= _parts(FIRST_SOUND_DRIVER)


def _parts(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))
