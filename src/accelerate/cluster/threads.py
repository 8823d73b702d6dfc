"""How the processes on one machine share its cores, when nobody has said."""

from __future__ import annotations

import logging
import os

import torch

from accelerate.cluster.topology import Topology

logger = logging.getLogger(__name__)


def share_cores(topology: Topology) -> None:
    """Give this process its part of the physical cores as torch threads, unless OMP_NUM_THREADS says how many.

    Without that, each process would start one thread per core, and they would push one another off the processor.
    The first process on each machine says what was chosen.
    """
    if os.environ.get("OMP_NUM_THREADS"):
        return
    threads = threads_per_process(topology.local_world_size, physical_cores())
    torch.set_num_threads(threads)
    if topology.is_local_main:
        logger.warning(
            "OMP_NUM_THREADS is not set: each of the %d processes on this machine uses %d torch threads.",
            topology.local_world_size,
            threads,
        )


def threads_per_process(processes: int, cores: int) -> int:
    """Return an equal share of `cores`, at least one."""
    return max(1, cores // processes)


def physical_cores() -> int:
    """Return how many physical cores the machine has, or logical ones where it doesn't tell them apart."""
    import psutil

    return psutil.cpu_count(logical=False) or psutil.cpu_count() or 1
