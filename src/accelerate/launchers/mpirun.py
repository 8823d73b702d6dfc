"""Processes that mpirun starts, on the machines of a hostfile: Open MPI, MPICH or Intel MPI.

The variables of the run travel on the command line, since mpirun hands on none to other machines. In the processes,
`accelerate.cluster.mpi` reads the ranks.
"""

from __future__ import annotations

import functools
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import ClassVar

from accelerate.base.messages import message
from accelerate.launchers.base import Launcher
from accelerate.launchers.command import command
from accelerate.launchers.environment import environment
from accelerate.launchers.hostfile import MPI, Host, read_hostfile
from accelerate.launchers.plan import LaunchPlan
from accelerate.launchers.settings import DEFAULT_PORT, LaunchSettings
from accelerate.launchers.torchrun import TorchrunLauncher

BY_MPI = "mpirun starts the processes"


class MpirunLauncher(Launcher):
    """Starts processes with mpirun."""

    name = "mpirun"
    without_effect: ClassVar[Mapping[str, str]] = {
        **TorchrunLauncher.without_effect,
        **dict.fromkeys(
            ("max_restarts", "log_dir", "tee", "role", "monitor_interval", "rdzv_backend", "rdzv_conf", "machine_rank"),
            BY_MPI,
        ),
    }

    def accepts(self, config: LaunchSettings) -> bool:
        """Return whether a hostfile is named."""
        return config.get("mpirun_hostfile") is not None

    def plan(self, config: LaunchSettings) -> LaunchPlan:
        """Return the command line of mpirun.

        Raises:
            ValueError: a line of the hostfile can't be read, or its machines take fewer processes.
            FileNotFoundError: there is no such file, or no mpirun.
        """
        path = Path(config.get("mpirun_hostfile"))
        hosts = read_hostfile(path, MPI)
        _check_room(path, hosts, config)
        address = config.get("main_process_ip") or hosts[0].name
        port = config.port or DEFAULT_PORT
        env = {**environment(config), "MASTER_ADDR": address, "MASTER_PORT": str(port)}
        program, flavour = find_mpirun()
        each = max(config.num_processes // len(hosts), 1)
        return LaunchPlan(
            launcher=self.name,
            argv=(program, *FLAVOURS[flavour](str(path), config.num_processes, each, env), *command(config)),
            env=env,
            num_processes=config.num_processes,
            num_machines=1,
            address=address,
            port=port,
            script=config.script,
        )


def _open_mpi(hostfile: str, processes: int, each: int, env: Mapping[str, str]) -> list[str]:
    """Return the arguments of Open MPI's mpirun."""
    exported = [word for name, value in sorted(env.items()) for word in ("-x", f"{name}={value}")]
    return ["--hostfile", hostfile, "-n", str(processes), "--npernode", str(each), "--bind-to", "socket", *exported]


def _hydra(hostfile: str, processes: int, each: int, env: Mapping[str, str]) -> list[str]:
    """Return the arguments of the mpiexec of MPICH and of Intel MPI."""
    exported = [word for name, value in sorted(env.items()) for word in ("-genv", name, value)]
    return ["-f", hostfile, "-n", str(processes), "-ppn", str(each), *exported]


FLAVOURS: dict[str, Callable[[str, int, int, Mapping[str, str]], list[str]]] = {"openmpi": _open_mpi, "hydra": _hydra}


@functools.cache
def find_mpirun() -> tuple[str, str]:
    """Return the program that starts MPI processes, and of which kind it is.

    Raises:
        FileNotFoundError: there is none.
    """
    import shutil

    for name in ("mpirun", "mpiexec"):
        if shutil.which(name):
            told = subprocess.run([name, "--version"], capture_output=True, text=True, timeout=60, check=False).stdout
            return name, "openmpi" if "Open MPI" in told or "OpenRTE" in told else "hydra"
    raise FileNotFoundError(
        message(
            given="a hostfile for mpirun",
            why="neither mpirun nor mpiexec is on the PATH",
            allowed="an installation of Open MPI, MPICH or Intel MPI",
            do="install one of them (`apt install openmpi-bin`), or leave out --mpirun_hostfile",
        )
    )


def _check_room(path: Path, hosts: list[Host], config: LaunchSettings) -> None:
    """Refuse more processes than the machines take, when all say how many they do."""
    slots = [host.slots for host in hosts]
    room = sum(number for number in slots if number is not None)
    if None in slots or config.num_processes <= room:
        return
    raise ValueError(
        message(
            given=f"{config.num_processes} processes on the machines in {path}",
            why=f"their slots add up to {room}",
            allowed=f"at most {room}",
            do=f"--num_processes {room}, or give the machines more slots",
        )
    )
