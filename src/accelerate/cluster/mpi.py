"""Processes started by the mpirun of Open MPI, Intel MPI, MPICH or MVAPICH."""

from __future__ import annotations

from collections.abc import Mapping

from accelerate.cluster.base import ClusterEnvironment, checked_rank, first_integer
from accelerate.cluster.topology import Topology, topology_from

RANK = ("PMI_RANK", "OMPI_COMM_WORLD_RANK", "MV2_COMM_WORLD_RANK")
SIZE = ("PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "MV2_COMM_WORLD_SIZE")
LOCAL_RANK = ("MPI_LOCALRANKID", "OMPI_COMM_WORLD_LOCAL_RANK", "MV2_COMM_WORLD_LOCAL_RANK")
LOCAL_SIZE = ("MPI_LOCALNRANKS", "OMPI_COMM_WORLD_LOCAL_SIZE", "MV2_COMM_WORLD_LOCAL_SIZE")


class MPI(ClusterEnvironment):
    """The variables of the MPI libraries, which torch itself doesn't read."""

    title = "mpirun"
    speaks_mpi = True

    @classmethod
    def detect(cls, environ: Mapping[str, str]) -> bool:
        """Return whether one of the MPI libraries counts more than one process."""
        return first_integer(environ, SIZE, 1) > 1

    def topology(self) -> Topology:
        """Return the ranks; without local ones, all processes are taken to be on this machine."""
        world_size = first_integer(self.environ, SIZE, 1)
        rank = checked_rank(first_integer(self.environ, RANK, 0), world_size)
        return topology_from(
            rank,
            world_size,
            first_integer(self.environ, LOCAL_RANK, rank),
            first_integer(self.environ, LOCAL_SIZE, world_size),
        )
