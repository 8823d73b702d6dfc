"""One process: nothing to communicate. Every default of `Strategy` is already right."""

from __future__ import annotations

from typing import final

from accelerate.config.enums import DistributedType
from accelerate.strategies.base import Strategy


@final
class SingleProcess(Strategy):
    """One process on one device."""

    name = "single"

    def label(self) -> DistributedType:
        return DistributedType.NO
