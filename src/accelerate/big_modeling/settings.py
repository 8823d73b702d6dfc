"""How offloaded weights are brought in ahead of time, and how much memory that may take."""

from __future__ import annotations

from dataclasses import dataclass

from accelerate.base.environ import parse_flag_from_env, read
from accelerate.base.messages import message
from accelerate.big_modeling.units import convert_file_size_to_int

#: What may be read ahead on a device, where nothing is said: as much as the largest part, and at least this.
LEAST_ROOM = 64 * 2**20


@dataclass(frozen=True)
class OffloadSettings:
    """What the engine behind offloaded models does; pass it as `offload_settings`.

    Args:
        prefetch: read the parts that come next while the current one computes; if not, each is read when it runs. By
            default the flag ACCELERATE_OFFLOAD_PREFETCH, else yes.
        cache_size: bytes that weights which are not in use may take on the device: those that are read ahead, and those
            that are kept for the next forward. Text such as "2GiB" will do. By default ACCELERATE_OFFLOAD_CACHE, else
            as much as the largest part takes.
        readers: how many parts are read at a time. For an accelerator each reader keeps a page-locked buffer in the
            memory of the host, as large as the largest part that it has read.
    """

    prefetch: bool | None = None
    cache_size: int | str | None = None
    readers: int = 2

    def __post_init__(self) -> None:
        if self.readers < 1:
            raise ValueError(
                message(
                    given=f"readers={self.readers}",
                    why="without a reader nothing is brought in",
                    allowed="1 or more",
                    do="pass `prefetch=False` to read each part when it runs",
                )
            )
        self.room(0)

    def is_on(self) -> bool:
        """Return whether parts are read ahead."""
        return parse_flag_from_env("ACCELERATE_OFFLOAD_PREFETCH", True) if self.prefetch is None else self.prefetch

    def room(self, largest: int) -> int:
        """Return how many bytes weights may take that are not in use.

        Args:
            largest: the bytes of the largest part.
        """
        if not self.is_on():
            return 0
        asked = read("ACCELERATE_OFFLOAD_CACHE") if self.cache_size is None else self.cache_size
        return max(largest, LEAST_ROOM) if asked is None else convert_file_size_to_int(asked)
