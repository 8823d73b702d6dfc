"""Where a process stands among the others: a frozen set of ranks, decided once and handed around.

Ranks are read from whatever started the process (`environments`); nothing else in the library asks the environment
who it is.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Topology:
    """The ranks of one process; by default the only one there is.

    Args:
        rank: this process among all, from 0.
        world_size: how many processes there are.
        local_rank: this process among those on its machine.
        local_world_size: how many processes run on this machine.
        node_rank: this machine among all.
        num_nodes: how many machines there are.
    """

    rank: int = 0
    world_size: int = 1
    local_rank: int = 0
    local_world_size: int = 1
    node_rank: int = 0
    num_nodes: int = 1

    @property
    def is_main(self) -> bool:
        """Whether this is the first process of all."""
        return self.rank == 0

    @property
    def is_local_main(self) -> bool:
        """Whether this is the first process on its machine."""
        return self.local_rank == 0

    @property
    def is_last(self) -> bool:
        """Whether this is the last process of all."""
        return self.rank == self.world_size - 1


def topology_from(rank: int, world_size: int, local_rank: int, local_world_size: int) -> Topology:
    """Return the topology of equally filled machines, numbered in order of their ranks."""
    local_world_size = max(1, local_world_size)
    return Topology(
        rank=rank,
        world_size=world_size,
        local_rank=local_rank,
        local_world_size=local_world_size,
        node_rank=rank // local_world_size,
        num_nodes=-(-world_size // local_world_size),
    )
