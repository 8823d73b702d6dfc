"""Runs with DeepSpeed on machines that its own runner starts, by pdsh, MPI or SLURM from one, or on each (nossh).

On one machine, and with `standard`, the processes are torchrun's; what DeepSpeed is told goes by the same variables
either way (:mod:`accelerate.launchers.environment`). We read the hostfile first, since the runner goes on with this
machine alone when there is none, and counts on each machine what it was not asked for.
"""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

from accelerate.base.messages import message
from accelerate.launchers.base import Launcher
from accelerate.launchers.deepspeed_file import DS_ENV_FILE, check_values, handed_on, written
from accelerate.launchers.environment import environment
from accelerate.launchers.hostfile import DEEPSPEED, Host, choose, read_hostfile
from accelerate.launchers.plan import LaunchPlan
from accelerate.launchers.settings import DEFAULT_PORT, LaunchSettings
from accelerate.launchers.torchrun import TorchrunLauncher

RUNNER = ("-m", "deepspeed.launcher.runner")
#: Where DeepSpeed looks for a hostfile.
USUAL_HOSTFILE = Path("/job/hostfile")
#: These start a process for each slot, and take neither a filter nor a number.
BY_SLOTS = ("openmpi", "mvapich", "mpich", "impi")
BY_RUNNER = "DeepSpeed's runner starts the processes"


class DeepSpeedLauncher(Launcher):
    """Has DeepSpeed's runner start the processes of several machines."""

    name = "deepspeed"
    without_effect: ClassVar[Mapping[str, str]] = {
        **TorchrunLauncher.without_effect,
        **dict.fromkeys(
            (
                "max_restarts", "log_dir", "tee", "role", "monitor_interval", "rdzv_backend", "rdzv_conf",
                "same_network", "watchdog",
            ),
            BY_RUNNER,
        ),
        "gpu_ids": "the slots of the hostfile are the accelerators",
    }  # fmt: skip

    def accepts(self, config: LaunchSettings) -> bool:
        """Return whether DeepSpeed's runner starts the processes."""
        return config.deepspeed_runner is not None

    def reasons(self, config: LaunchSettings) -> dict[str, str]:
        """Return what changes nothing; the machine's own rank counts where each is started by itself."""
        from_one = {} if config.deepspeed_runner == "nossh" else {"machine_rank": "all machines are started from this"}
        return {**super().reasons(config), **from_one}

    def plan(self, config: LaunchSettings) -> LaunchPlan:
        """Return the command line of DeepSpeed's runner.

        Raises:
            ValueError: the hostfile, the filter and the numbers don't agree, or this way of starting can't do it.
            FileNotFoundError: there is no hostfile.
        """
        how = str(config.deepspeed_runner)
        path = _hostfile(config)
        hosts = read_hostfile(path, DEEPSPEED)
        slots = choose(hosts, config.get("deepspeed_inclusion_filter"), config.get("deepspeed_exclusion_filter"))
        each = _processes_on_each(config, path, slots)
        words = [*_resources(config, how, hosts, slots, each), *_meeting(config, how, len(slots))]
        env = {**environment(config), **(handed_on(config.environ) if how != "nossh" else {})}
        if how != "nossh":
            check_values(env, how)
        start = ["--no_ssh", "--node_rank", str(config.get("machine_rank"))] if how == "nossh" else ["--launcher", how]
        words += [f"--{dest}" for dest in ("module", "no_python") if config.get(dest)]
        shell = how == "pdsh" and len(slots) > 1
        arguments = [for_pdsh(argument) if shell else argument for argument in config.arguments]
        return LaunchPlan(
            launcher=self.name,
            argv=(
                *(sys.executable, *RUNNER, "--hostfile", str(path), "--no_local_rank"),
                *(*start, *words, config.script, *arguments),
            ),
            env=env,
            num_processes=sum(map(len, slots.values())) if each is None else each * len(slots),
            num_machines=len(slots),
            machine_rank=int(config.get("machine_rank")) if how == "nossh" else 0,
            address=config.get("main_process_ip") or next(iter(slots)),
            port=config.get("main_process_port") or DEFAULT_PORT,
            script=config.script,
        )

    def run(self, plan: LaunchPlan) -> int:
        """Run DeepSpeed's runner, which reads from a file of our own what it hands on to the machines."""
        if "--no_ssh" in plan.argv:
            return super().run(plan)
        with written(plan.env) as path:
            return super().run(replace(plan, env={**plan.env, DS_ENV_FILE: str(path)}))


def for_pdsh(argument: str) -> str:
    """Return an argument of the script so that it arrives as it is: DeepSpeed quotes blanks, and nothing else."""
    if " " not in argument:
        return shlex.quote(argument)
    return re.sub(r"([\\$`])", r"\\\1", argument)


def _hostfile(config: LaunchSettings) -> Path:
    """Return the hostfile that was named, or the one in DeepSpeed's usual place."""
    named = config.get("deepspeed_hostfile")
    if named is None and not USUAL_HOSTFILE.is_file():
        raise ValueError(
            message(
                given=f"{config.num_machines} machines started by {config.deepspeed_runner}, and no hostfile",
                why="nothing says which machines they are",
                allowed=f"--deepspeed_hostfile hosts, with lines such as `node1 slots=4`, or {USUAL_HOSTFILE}",
                do="add the file, or run the same line on every machine with --deepspeed_multinode_launcher standard",
            )
        )
    return Path(named) if named is not None else USUAL_HOSTFILE


def _processes_on_each(config: LaunchSettings, path: Path, slots: Mapping[str, list[int]]) -> int | None:
    """Return how many processes each machine starts, if that isn't just one for each slot that was chosen."""
    if "num_machines" in config.found and config.num_machines != len(slots):
        raise ValueError(
            message(
                given=f"{config.said('num_machines')}, and {len(slots)} machines chosen from {path}",
                why="DeepSpeed starts all machines that are chosen",
                allowed="the same number",
                do=f"--num_machines {len(slots)}, or a filter: --deepspeed_inclusion_filter {'@'.join(slots)}",
            )
        )
    all_slots = sum(map(len, slots.values()))
    if not config.num_processes_is_said or config.num_processes == all_slots:
        return None
    filtered = [dest for dest in ("deepspeed_inclusion_filter", "deepspeed_exclusion_filter") if config.get(dest)]
    each, rest = divmod(config.num_processes, len(slots))
    if filtered or rest or each > min(map(len, slots.values())):
        why = f"the filter chooses {all_slots}" if filtered else "each machine starts as many, one for a slot at most"
        raise ValueError(
            message(
                given=f"{config.said('num_processes')}, and machines with {all_slots} slots in {path}",
                why=why,
                allowed=f"{all_slots}, or no number",
                do="leave the number out, or change the slots in the hostfile",
            )
        )
    return each


def _resources(
    config: LaunchSettings, how: str, hosts: list[Host], slots: Mapping[str, list[int]], each: int | None
) -> list[str]:
    """Return the words that choose machines and slots; refuse what this way of starting them can't do."""
    words: list[str] = []
    for dest, flag in (("deepspeed_inclusion_filter", "--include"), ("deepspeed_exclusion_filter", "--exclude")):
        words += [flag, config.get(dest)] if config.get(dest) else []
    words += ["--num_gpus", str(each)] if each is not None else []
    numbers = sorted({host.slots or 0 for host in hosts})
    if how in BY_SLOTS and words:
        raise _impossible(how, f"{words[0]} {words[1]}", "it starts one process for each slot of the hostfile")
    if how in BY_SLOTS and how != "openmpi" and len(numbers) > 1:
        raise _impossible(how, f"machines with {' and '.join(map(str, numbers))} slots", "it starts as many on each")
    if how == "slurm" and any(slots[host.name] != list(range(host.slots or 0)) for host in hosts if host.name in slots):
        raise _impossible(
            how, f"{words[0]} {words[1]}", "SLURM is asked for machines, and gives slots of its own choice"
        )
    return words


def _impossible(how: str, given: str, why: str) -> ValueError:
    """Return the error for what one way of starting machines can't do."""
    return ValueError(
        message(
            given=f"--deepspeed_multinode_launcher {how} and {given}",
            why=why,
            allowed="a hostfile with just the machines and slots to use",
            do="write such a hostfile, or choose --deepspeed_multinode_launcher pdsh",
        )
    )


def _meeting(config: LaunchSettings, how: str, machines: int) -> list[str]:
    """Return where the processes meet; from one machine, DeepSpeed asks the first for its address."""
    address, port, rank = (config.get(f"{name}") for name in ("main_process_ip", "main_process_port", "machine_rank"))
    if how == "nossh" and rank >= machines:
        raise ValueError(
            message(
                given=f"machine_rank {rank} of {machines} machine{'s' if machines > 1 else ''}",
                why="ranks count from 0, in the order of the hostfile",
                allowed=f"0 to {machines - 1}",
                do="give each machine its own rank",
            )
        )
    if how == "nossh" and address is None:
        raise ValueError(
            message(
                given="--deepspeed_multinode_launcher nossh and no main_process_ip",
                why="the machines are started one by one, and have to meet somewhere",
                allowed="the name or address of the machine of rank 0, the same on all of them",
                do="add --main_process_ip ADDRESS, and to each machine its --machine_rank",
            )
        )
    if port == 0:
        raise ValueError(
            message(
                given="main_process_port 0 for several machines",
                why="a port that is free here may be taken on the machine where they meet",
                allowed="one number, the same on every machine",
                do="add --main_process_port 29500, or leave it out",
            )
        )
    return [*(["--master_addr", address] if address else []), "--master_port", str(port or DEFAULT_PORT)]
