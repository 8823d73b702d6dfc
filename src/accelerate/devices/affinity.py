"""Binding a process to the processor cores next to its device (Linux, read from sysfs).

On machines with several NUMA nodes, memory that is copied to a device crosses the link between the sockets when the
process runs on the wrong one.
"""

from __future__ import annotations

import logging
import os
from functools import lru_cache
from pathlib import Path

from accelerate.base.environ import parse_flag_from_env
from accelerate.base.messages import warn_once
from accelerate.devices.device import build_device
from accelerate.devices.select import default_spec

logger = logging.getLogger(__name__)

SYSFS = Path("/sys")


@lru_cache
def set_numa_affinity(local_process_index: int, verbose: bool | None = None) -> None:
    """Bind this process to the cores next to its device; a second call with the same arguments does nothing.

    Args:
        local_process_index: the local rank, which is also the index of the device.
        verbose: whether to log the cores; by default, when ACCELERATE_DEBUG_MODE is on.
    """
    override_numa_affinity(local_process_index, verbose)


def override_numa_affinity(local_process_index: int, verbose: bool | None = None) -> None:
    """Bind this process to the cores next to its device, whatever it was bound to before."""
    if verbose is None:
        verbose = parse_flag_from_env("ACCELERATE_DEBUG_MODE", False)
    cores = cores_near_device(local_process_index)
    if not cores:
        return
    bind(cores)
    if verbose:
        logger.info("Process %d is bound to %d cores: %s", local_process_index, len(cores), cores)


def cores_near_device(local_process_index: int) -> list[int]:
    """Return the cores on the NUMA node of the device of this local rank; none (and a warning) when that is unknown."""
    spec = default_spec()
    if spec.name == "cpu":
        return []
    count = max(1, build_device(spec).count())
    address = build_device(spec, local_process_index % count).pci_address()
    node = None if address is None else numa_node(address)
    if node is None:
        warn_once(f"CPU affinity is not set: where a device of kind {spec.title} is on the PCI bus can't be found out.")
        return []
    return cores_of_node(node)


def numa_node(pci_address: str) -> int | None:
    """Return the NUMA node of the device at `pci_address`, or None if the system doesn't tell."""
    path = SYSFS / "bus/pci/devices" / pci_address / "numa_node"
    # The kernel writes -1 where there is only one node.
    return max(0, int(path.read_text())) if path.exists() else None


def cores_of_node(node: int) -> list[int]:
    """Return the cores of a NUMA node."""
    return parse_cpu_list((SYSFS / f"devices/system/node/node{node}/cpulist").read_text())


def parse_cpu_list(cpu_list_str: str) -> list[int]:
    """Return the numbers in a list such as "0-3,8,10-11"."""
    cores: list[int] = []
    for part in cpu_list_str.strip().split(","):
        first, _, last = part.partition("-")
        if first:
            cores.extend(range(int(first), int(last or first) + 1))
    return cores


def bind(cores: list[int]) -> None:
    """Bind this process to those of `cores` that it may use, with all of its threads: new ones follow their parent."""
    import psutil

    allowed = sorted(set(cores) & os.sched_getaffinity(0)) or cores
    for thread in psutil.Process().threads():
        os.sched_setaffinity(thread.id, allowed)
