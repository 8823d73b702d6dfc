"""A script that has formed the process group itself, before the library was asked for anything."""

from __future__ import annotations

import sys
from collections.abc import Mapping

from accelerate.cluster import mpi
from accelerate.cluster.base import ClusterEnvironment, first_integer
from accelerate.cluster.topology import Topology, topology_from


class ExistingGroup(ClusterEnvironment):
    """The default group of torch.distributed, already initialised; it knows the ranks best."""

    title = "the script's own process group"

    @classmethod
    def detect(cls, environ: Mapping[str, str]) -> bool:
        """Return whether the default process group exists."""
        distributed = sys.modules.get("torch.distributed")
        return distributed is not None and distributed.is_available() and distributed.is_initialized()

    def topology(self) -> Topology:
        """Return the ranks in the group; local ones from the environment, or as if all were on this machine."""
        import torch.distributed as dist

        rank, world_size = dist.get_rank(), dist.get_world_size()
        local_rank = first_integer(self.environ, ("LOCAL_RANK", *mpi.LOCAL_RANK), rank)
        local_size = first_integer(self.environ, ("LOCAL_WORLD_SIZE", *mpi.LOCAL_SIZE), world_size)
        return topology_from(rank, world_size, local_rank, local_size)
