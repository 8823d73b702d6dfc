"""The variables that a launch adds for the library in the started processes.

Only what was said, by flag or config file, is handed on: what is left open is decided by the library, whose
defaults are the same whichever way a program is started. Added on top are what follows from the hardware: the CPU
where there is nothing else, the choice of devices, and the number of threads, which torch can't know.
"""

from __future__ import annotations

import os
from pathlib import Path

from accelerate.base.peer_to_peer import SWITCHES
from accelerate.config.deepspeed import SECTION
from accelerate.config.env import to_env
from accelerate.launchers.settings import LaunchSettings, declared

USE_CPU = "ACCELERATE_USE_CPU"
USE_FSDP = "ACCELERATE_USE_FSDP"
USE_DEEPSPEED = "ACCELERATE_USE_DEEPSPEED"
#: The settings of DeepSpeed that the config file has, which must not be in DeepSpeed's own file too.
DEEPSPEED_FIELDS = "ACCELERATE_CONFIG_DS_FIELDS"
DEEPSPEED_DEVICE = "DS_ACCELERATOR"
USE_MESH = "ACCELERATE_USE_PARALLELISM_CONFIG"
THREADS = "OMP_NUM_THREADS"
#: Which threads share a core with this one: the same text for all of them.
CORE = "/sys/devices/system/cpu/cpu{}/topology/thread_siblings_list"


def environment(settings: LaunchSettings) -> dict[str, str]:
    """Return the variables for the processes of a launch."""
    return {**said_environment(settings), **_hardware(settings), **_threads(settings)}


def said_environment(settings: LaunchSettings) -> dict[str, str]:
    """Return the variables for what was said, whatever machine the processes run on."""
    env = to_env(declared().values(), {dest: found.value for dest, found in settings.found.items()})
    if settings.uses_fsdp:
        env[USE_FSDP] = "true"
    if settings.lays_out:
        env[USE_MESH] = "true"
    if settings.uses_deepspeed:
        env.update(_deepspeed(settings))
    return env


def _deepspeed(settings: LaunchSettings) -> dict[str, str]:
    """Return what DeepSpeed needs beside its settings: where modules are, and the device if that is the CPU."""
    section = {one.dest: str(one.key) for one in declared().values() if one.section == SECTION}
    by_file = [dest for dest, found in settings.found.items() if found.source == "file"]
    fields = [section.get(dest, dest) for dest in by_file if dest in section or dest == "mixed_precision"]
    paths = [path for path in (settings.environ.get("PYTHONPATH"), os.getcwd()) if path]
    env = {
        USE_DEEPSPEED: "true",
        "PYTHONPATH": os.pathsep.join(dict.fromkeys(os.pathsep.join(paths).split(os.pathsep))),
    }
    if fields:
        env[DEEPSPEED_FIELDS] = ",".join(sorted(fields))
    if settings.on_cpu:
        env[DEEPSPEED_DEVICE] = "cpu"
    return env


def _hardware(settings: LaunchSettings) -> dict[str, str]:
    """Return what says on which devices to run."""
    if settings.on_cpu and (settings.cpu_is_chosen or settings.num_processes > 1):
        return {USE_CPU: "true"}
    env = {USE_CPU: "false"} if "cpu" in settings.found else {}
    visible = settings.hardware.spec.visible
    if settings.deepspeed_runner is not None:
        return env
    if settings.chosen_ids is not None and visible is not None:
        env[visible] = settings.chosen_ids
    if not settings.hardware.peer_to_peer and settings.num_processes > 1:
        env.update({switch: "1" for switch in SWITCHES if switch not in settings.environ})
    return env


def _threads(settings: LaunchSettings) -> dict[str, str]:
    """Return how many threads each process may use, unless the launching process says so already."""
    said = settings.get("num_cpu_threads_per_process")
    if said is not None:
        return {THREADS: str(said)}
    if THREADS in settings.environ or settings.deepspeed_runner is not None:
        return {}
    if not settings.on_cpu:
        return {THREADS: "1"}
    return {THREADS: str(max((settings.cores or physical_cores()) // settings.processes_here, 1))}


def physical_cores() -> int:
    """Return how many CPU cores this process may use; two threads of one core count once."""
    try:
        return len({Path(CORE.format(cpu)).read_text() for cpu in os.sched_getaffinity(0)})
    except (AttributeError, OSError):  # not Linux
        import psutil

        return psutil.cpu_count(logical=False) or os.cpu_count() or 1


def rank_variables(
    *,
    rank: int,
    world_size: int,
    local_rank: int,
    local_world_size: int,
    node: int,
    nodes: int,
    address: str,
    port: int,
) -> dict[str, str]:
    """Return torch's own variables for a process that isn't started by torch, under the names of torchrun."""
    return {
        "RANK": str(rank),
        "WORLD_SIZE": str(world_size),
        "LOCAL_RANK": str(local_rank),
        "LOCAL_WORLD_SIZE": str(local_world_size),
        "GROUP_RANK": str(node),
        "GROUP_WORLD_SIZE": str(nodes),
        "MASTER_ADDR": address,
        "MASTER_PORT": str(port),
    }
