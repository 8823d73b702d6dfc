"""Settings of context parallel: :class:`TorchContextParallelConfig`."""

from __future__ import annotations

from dataclasses import dataclass

from accelerate.config.env import fill
from accelerate.config.option import shared
from accelerate.config.parallelism_settings import ParallelismSettings


@dataclass
class TorchContextParallelConfig:
    """How the ranks that have parts of one sequence let each other see all of it.

    Args:
        cp_comm_strategy: "allgather" fetches all keys and values at once; "alltoall" passes them on from rank to rank,
            a part at a time. By default PARALLELISM_CONFIG_CP_COMM_STRATEGY, or "allgather". On the CPU it is the
            first of them.

    Raises:
        ValueError: another strategy.
    """

    cp_comm_strategy: str = shared(ParallelismSettings, "cp_comm_strategy", None)

    def __post_init__(self) -> None:
        fill(self)
