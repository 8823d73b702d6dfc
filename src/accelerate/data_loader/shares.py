"""Which share of the data a process reads.

A loader asks one question of the device mesh: which batch is mine? Ranks that hold parts of one model (tensor, context,
pipeline parallel) answer alike and see the same batch; data-parallel ranks see different ones. Sequence parallel ranks
read different ones too, and exchange parts of them (`turns`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from accelerate.base.messages import message

BATCH_AXES = frozenset({"dp", "dp_replicate", "dp_shard", "sp"})
# Flattened views of other axes, which would be counted twice.
FLATTENED_AXES = frozenset({"dp_shard_cp", "dp_cp"})


@dataclass(frozen=True)
class DataShard:
    """The share `index` of `count` equal ones.

    Args:
        index: which share, from 0.
        count: in how many shares the data is divided.

    Raises:
        ValueError: there is no such share.
    """

    index: int = 0
    count: int = 1

    def __post_init__(self) -> None:
        if not 0 <= self.index < self.count:
            raise ValueError(
                message(
                    given=f"process_index={self.index} with num_processes={self.count}",
                    why="the shares of the data are numbered from 0",
                    allowed=f"process_index from 0 to {self.count - 1}"
                    if self.count > 0
                    else "num_processes of 1 or more",
                    do="pass the rank of this process among those that read different data",
                )
            )

    @classmethod
    def of(cls, rank: int, world_size: int, mesh: Any = None) -> DataShard:
        """Return the share of rank `rank` of `world_size`.

        Args:
            rank: the rank in the whole run.
            world_size: the number of processes in the whole run.
            mesh: a `torch.distributed.DeviceMesh` with named axes, or None when every rank reads data of its own. Ranks
                are numbered so that those of the last axis are neighbours.
        """
        if mesh is None:
            return cls(rank, world_size)
        names = [name for name in mesh.mesh_dim_names or () if name not in FLATTENED_AXES]
        if {"dp_replicate", "dp_shard"}.intersection(names):
            names = [name for name in names if name != "dp"]  # then it is a view of the others
        index, count, stride = 0, 1, 1
        for name in reversed(names):
            size = mesh[name].size()
            if name in BATCH_AXES:
                index += rank // stride % size * count
                count *= size
            stride *= size
        return cls(index + rank // stride * count, count * (world_size // stride))  # a mesh of some ranks repeats
