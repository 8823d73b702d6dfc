"""Several processes, on one machine or many: torch's own elastic agent, told by the command line of `torchrun`.

The plan is that command line, so what `--dry_run` prints can be pasted into a shell. It is carried out in this
process by :mod:`accelerate.launchers.elastic`, which stops faster and says more when a process fails.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import ClassVar

from accelerate.launchers.base import Launcher
from accelerate.launchers.command import is_plain
from accelerate.launchers.environment import environment
from accelerate.launchers.plan import LaunchPlan
from accelerate.launchers.settings import LaunchSettings, declared

LOCALHOST = "127.0.0.1"
TORCHRUN = ("-m", "torch.distributed.run")
#: Settings that only torchrun can honour, also for a single process.
ITS_OWN = ("max_restarts", "log_dir", "tee", "rdzv_backend")
#: Settings handed to torchrun as they are, under the same names, when they were given.
HANDED_ON = ("max_restarts", "monitor_interval", "log_dir", "tee", "role")
NO_TPU = "the run isn't one on TPUs"


class TorchrunLauncher(Launcher):
    """Starts processes through `torch.distributed.run`, one for each device."""

    name = "torchrun"
    without_effect: ClassVar[Mapping[str, str]] = {
        **dict.fromkeys(("main_training_function", "tpu_use_cluster", "tpu_use_sudo", "vm", "env"), NO_TPU),
    }

    def accepts(self, config: LaunchSettings) -> bool:
        """Return whether there are several processes, or one that has to be found by DeepSpeed, or watched."""
        special = any(config.get(dest) != declared()[dest].default for dest in ITS_OWN if config.is_flag(dest))
        several = config.num_processes > 1 or config.num_machines > 1
        return is_plain(config) and (several or special or config.uses_deepspeed)

    def plan(self, config: LaunchSettings) -> LaunchPlan:
        """Return the command line of torchrun that starts the processes of this machine."""
        address, port = meeting_point(config)
        return LaunchPlan(
            launcher=self.name,
            argv=(sys.executable, *TORCHRUN, *_arguments(config, address, port), config.script, *config.arguments),
            env=environment(config),
            num_processes=config.num_processes,
            num_machines=config.num_machines,
            machine_rank=int(config.get("machine_rank")),
            address=address,
            port=port or 0,
            script=config.script,
        )

    def run(self, plan: LaunchPlan) -> int:
        """Run the elastic agent in this process until all of its workers have ended."""
        from accelerate.launchers.elastic import run

        return run(plan)


def meeting_point(config: LaunchSettings) -> tuple[str, int | None]:
    """Return the address and the port where the processes meet; no port means that any free one will do."""
    address = config.get("main_process_ip")
    return address or LOCALHOST, config.port


def _arguments(config: LaunchSettings, address: str, port: int | None) -> list[str]:
    """Return the arguments of torchrun itself."""
    arguments = ["--nproc_per_node", str(config.processes_here), *_rendezvous(config, address, port)]
    conf = _rendezvous_settings(config)
    arguments += ["--rdzv_conf", conf] if conf else []
    for dest in HANDED_ON:
        if dest in config.found:
            arguments += [f"--{dest}", str(config.get(dest))]
    return arguments + [f"--{dest}" for dest in ("module", "no_python") if config.get(dest)]


def _rendezvous(config: LaunchSettings, address: str, port: int | None) -> list[str]:
    """Return how the machines find each other."""
    backend = config.get("rdzv_backend")
    if port is None and backend in ("static", "c10d"):
        return ["--standalone"]
    machines = ["--nnodes", str(config.num_machines)]
    if backend == "static":
        rank = str(config.get("machine_rank"))
        return [*machines, "--node_rank", rank, "--master_addr", address, "--master_port", str(port)]
    return [*machines, "--rdzv_backend", backend, "--rdzv_endpoint", f"{address}:{port or 0}"]


def _rendezvous_settings(config: LaunchSettings) -> str:
    """Return further settings of the rendezvous: those that were given, and which machine is its host.

    By itself, c10d takes the machine for the host whose name or address is the meeting point, which fails where names
    aren't those of the network. A rank of 0 in a config file says little: the same file may lie on every machine.
    """
    said = str(config.get("rdzv_conf"))
    rank = config.found.get("machine_rank")
    if config.get("rdzv_backend") != "c10d" or config.num_machines == 1 or rank is None or "is_host=" in said:
        return said
    if rank.value == 0 and rank.source == "file":
        return said
    return ",".join([f"is_host={int(rank.value == 0)}", *([said] if said else [])])
