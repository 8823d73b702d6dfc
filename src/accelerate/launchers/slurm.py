"""Runs inside of a SLURM allocation, started by `srun accelerate launch`: no address, port or rank has to be given.

With one task on each machine (`--ntasks-per-node 1`), each task starts the processes of its machine, as elsewhere.
With several, each task is one process of the run, and becomes the script.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from accelerate.base.messages import message
from accelerate.base.slurm import Step
from accelerate.config.resolve import Found
from accelerate.launchers.base import Launcher
from accelerate.launchers.command import command, is_plain
from accelerate.launchers.environment import THREADS, environment, rank_variables
from accelerate.launchers.plan import LaunchPlan
from accelerate.launchers.settings import LaunchSettings
from accelerate.launchers.torchrun import TorchrunLauncher

BY_SRUN = "srun starts the processes"


class SlurmLauncher(Launcher):
    """Turns each of several tasks on a machine into one process of the run."""

    name = "slurm"
    without_effect: ClassVar[Mapping[str, str]] = {
        **TorchrunLauncher.without_effect,
        **dict.fromkeys(
            ("max_restarts", "log_dir", "tee", "role", "monitor_interval", "rdzv_backend", "rdzv_conf"), BY_SRUN
        ),
        **dict.fromkeys(("num_machines", "machine_rank"), "SLURM knows the machines"),
    }

    def accepts(self, config: LaunchSettings) -> bool:
        """Return whether this is one task of several on its machine."""
        step = Step.of(config.environ)
        return is_plain(config) and step is not None and not step.one_per_node

    def plan(self, config: LaunchSettings) -> LaunchPlan:
        """Return the command line of this task's process.

        Raises:
            ValueError: another number of processes is asked for than there are tasks.
        """
        step = Step.of(config.environ)
        assert step is not None  # `accepts` has seen it
        if config.num_processes_is_said and config.num_processes != step.tasks:
            raise ValueError(
                message(
                    given=f"{config.said('num_processes')} in a job step of {step.tasks} tasks",
                    why="with several tasks on a machine, each task is one process",
                    allowed=f"{step.tasks}, or no number",
                    do=f"leave the number out, or let srun start {config.num_processes} tasks (-n)",
                )
            )
        address = config.get("main_process_ip") or step.address
        port = config.port or step.port
        return LaunchPlan(
            launcher=self.name,
            argv=command(config),
            env={**environment(config), **_threads(config, step), **_ranks(step, address, port)},
            num_processes=step.tasks,
            num_machines=step.nodes,
            machine_rank=step.node,
            address=address,
            port=port,
            script=config.script,
        )


def fill_in(found: Mapping[str, Found], environ: Mapping[str, str]) -> dict[str, Any]:
    """Return the settings with what SLURM knows of the machines, which goes before a config file, but after flags."""
    step = Step.of(environ)
    if step is None:
        return dict(found)
    known: dict[str, Any] = {"num_machines": step.nodes, "machine_rank": step.node}
    if not step.one_per_node:
        known["num_processes"] = step.tasks
    if step.nodes > 1:
        known.update(main_process_ip=step.address, main_process_port=step.port)
    said = {dest for dest, one in found.items() if one.source == "flag"}
    return {**found, **{dest: Found(value, "SLURM") for dest, value in known.items() if dest not in said}}


def _ranks(step: Step, address: str, port: int) -> dict[str, str]:
    """Return torch's own variables for a task."""
    return rank_variables(
        rank=step.rank,
        world_size=step.tasks,
        local_rank=step.local_rank,
        local_world_size=step.local_tasks,
        node=step.node,
        nodes=step.nodes,
        address=address,
        port=port,
    )


def _threads(config: LaunchSettings, step: Step) -> dict[str, str]:
    """Return one thread for each core of the task, unless somebody has said otherwise."""
    said = config.get("num_cpu_threads_per_process") is not None or THREADS in config.environ
    return {} if said or step.cores is None or not config.on_cpu else {THREADS: str(step.cores)}
