"""Processes started by torchrun, by `accelerate launch`, or by anyone who sets torch's own variables."""

from __future__ import annotations

from collections.abc import Mapping

from accelerate.cluster.base import ClusterEnvironment, checked_rank, first_integer
from accelerate.cluster.topology import Topology, topology_from


class TorchElastic(ClusterEnvironment):
    """The variables RANK, WORLD_SIZE, LOCAL_RANK and their like."""

    title = "torchrun"

    @classmethod
    def detect(cls, environ: Mapping[str, str]) -> bool:
        """Return whether LOCAL_RANK is set, or a rank among several together with the place where they meet."""
        if first_integer(environ, ("LOCAL_RANK",), -1) >= 0:
            return True
        several = first_integer(environ, ("WORLD_SIZE",), 1) > 1
        return several and "RANK" in environ and "MASTER_ADDR" in environ

    def topology(self) -> Topology:
        """Return the ranks; without local ones, all processes are taken to be on this machine."""
        environ = self.environ
        world_size = first_integer(environ, ("WORLD_SIZE",), 1)
        rank = first_integer(environ, ("RANK",), first_integer(environ, ("LOCAL_RANK",), 0))
        local_rank = first_integer(environ, ("LOCAL_RANK",), rank)
        local_world_size = first_integer(environ, ("LOCAL_WORLD_SIZE",), world_size)
        ranks = topology_from(checked_rank(rank, world_size), world_size, local_rank, local_world_size)
        return Topology(
            rank=ranks.rank,
            world_size=ranks.world_size,
            local_rank=ranks.local_rank,
            local_world_size=ranks.local_world_size,
            node_rank=first_integer(environ, ("GROUP_RANK",), ranks.node_rank),
            num_nodes=first_integer(environ, ("GROUP_WORLD_SIZE",), ranks.num_nodes),
        )
