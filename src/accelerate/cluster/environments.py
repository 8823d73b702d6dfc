"""Who started this process: the environments, in the order in which they are asked.

The first that recognises its surroundings wins. Support for another launcher is one file with one class, and one entry
in `ENVIRONMENTS`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from accelerate.cluster import mpi
from accelerate.cluster.base import ClusterEnvironment, first_integer
from accelerate.cluster.elastic import TorchElastic
from accelerate.cluster.existing import ExistingGroup
from accelerate.cluster.mpi import MPI
from accelerate.cluster.single import SingleProcess
from accelerate.cluster.slurm import Slurm
from accelerate.cluster.xla import XlaRuntime

__all__ = [
    "ENVIRONMENTS",
    "MPI",
    "CPUInformation",
    "ClusterEnvironment",
    "ExistingGroup",
    "SingleProcess",
    "Slurm",
    "TorchElastic",
    "XlaRuntime",
    "detect_environment",
    "get_cpu_distributed_information",
]

ENVIRONMENTS: tuple[type[ClusterEnvironment], ...] = (
    ExistingGroup,
    XlaRuntime,
    TorchElastic,
    Slurm,
    MPI,
    SingleProcess,
)


def detect_environment(environ: Mapping[str, str] | None = None) -> ClusterEnvironment:
    """Return what started this process, judged by `environ` (by default, the variables of the process)."""
    variables = os.environ if environ is None else environ
    return next(kind(variables) for kind in ENVIRONMENTS if kind.detect(variables))


@dataclass
class CPUInformation:
    """The ranks of a process in a CPU run, as :func:`get_cpu_distributed_information` reads them."""

    rank: int = 0
    world_size: int = 1
    local_rank: int = 0
    local_world_size: int = 1


def get_cpu_distributed_information() -> CPUInformation:
    """Return the ranks under the names of torch or of an MPI library, or else those of a lone process."""
    return CPUInformation(
        rank=first_integer(os.environ, ("RANK", *mpi.RANK), 0),
        world_size=first_integer(os.environ, ("WORLD_SIZE", *mpi.SIZE), 1),
        local_rank=first_integer(os.environ, ("LOCAL_RANK", *mpi.LOCAL_RANK), 0),
        local_world_size=first_integer(os.environ, ("LOCAL_WORLD_SIZE", *mpi.LOCAL_SIZE), 1),
    )
