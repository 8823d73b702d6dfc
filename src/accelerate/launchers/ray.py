"""Runs on a Ray cluster: `accelerate launch --launcher ray` has Ray place the processes, and starts the script in each.

An actor on each place starts one process of the run, so that the script has a Python of its own, as everywhere else.
Ranks are given machine by machine; the processes meet on the machine of rank 0.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from accelerate.base.messages import message
from accelerate.launchers.base import Launcher
from accelerate.launchers.command import command
from accelerate.launchers.console import say
from accelerate.launchers.environment import USE_CPU, environment, rank_variables
from accelerate.launchers.plan import LaunchPlan
from accelerate.launchers.settings import LaunchSettings
from accelerate.launchers.torchrun import TorchrunLauncher
from accelerate.launchers.watch import Ending, exit_code

BY_RAY = "Ray places the processes"
#: Seconds until Ray has to have found a place for each process.
PATIENCE = 120


class RayLauncher(Launcher):
    """Starts processes on the machines of a Ray cluster, or of a local one if there is none."""

    name = "ray"
    without_effect: ClassVar[Mapping[str, str]] = {
        **TorchrunLauncher.without_effect,
        **dict.fromkeys(
            (
                "num_machines", "machine_rank", "main_process_ip", "rdzv_backend", "rdzv_conf", "max_restarts",
                "log_dir", "tee", "role", "monitor_interval", "watchdog", "gpu_ids",
            ),
            BY_RAY,
        ),
    }  # fmt: skip

    def accepts(self, config: LaunchSettings) -> bool:
        """Return whether Ray was asked for."""
        return config.get("launcher") == self.name

    def plan(self, config: LaunchSettings) -> LaunchPlan:
        """Return what each process runs, and how many there are.

        Raises:
            ValueError: it isn't said how many.
        """
        if not config.num_processes_is_said:
            raise ValueError(
                message(
                    given="--launcher ray without a number of processes",
                    why="the cluster may have other devices than this machine",
                    allowed="a whole number, 1 or more",
                    do="add --num_processes 8, or however many devices the cluster should give",
                )
            )
        return LaunchPlan(
            launcher=self.name,
            argv=command(config),
            env=environment(config),
            num_processes=config.num_processes,
            port=config.port,
            script=config.script,
        )

    def run(self, plan: LaunchPlan) -> int:
        """Have Ray start the processes, and return 0 or the exit code of the first that failed.

        Raises:
            ImportError: Ray isn't installed.
            RuntimeError: the cluster has no place for so many processes.
        """
        try:
            import ray
        except ImportError:
            raise ImportError(
                message(
                    given="--launcher ray",
                    why="the package ray isn't installed",
                    allowed="an environment with ray, the same on every machine of the cluster",
                    do="pip install 'accelerate[ray]'",
                )
            ) from None
        started_here = not ray.is_initialized()
        if started_here:
            ray.init(address=os.environ.get("RAY_ADDRESS"), log_to_driver=True, logging_level="warning")
        try:
            return _run(ray, plan)
        finally:
            if started_here:
                ray.shutdown()


class Worker:
    """What Ray runs on each place: it starts one process, and passes on what that writes."""

    def where(self) -> tuple[str, int]:
        """Return the address of the machine, and a port that is free there."""
        from accelerate.base.ports import get_free_port

        return _own_address(), int(get_free_port())

    def work(self, argv: Sequence[str], env: Mapping[str, str], folder: str) -> int:
        """Run a process in `folder`, if this machine has it, and return its exit code."""
        here = folder if os.path.isdir(folder) else None
        with subprocess.Popen(
            argv, env={**os.environ, **env}, cwd=here, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        ) as process:
            assert process.stdout is not None
            for line in process.stdout:
                print(line, end="", file=sys.stderr, flush=True)
            return process.wait()


def _run(ray: Any, plan: LaunchPlan) -> int:
    """Place workers, start the processes, and stop the others when one fails."""
    wanted = {"CPU": 1} if plan.env.get(USE_CPU) == "true" else {"CPU": 1, "GPU": 1}
    group = ray.util.placement_group([wanted] * plan.num_processes, strategy="PACK")
    try:
        _wait_for_places(ray, group, plan, wanted)
        place = ray.util.scheduling_strategies.PlacementGroupSchedulingStrategy
        remote = ray.remote(num_cpus=wanted["CPU"], num_gpus=wanted.get("GPU", 0))(Worker)
        workers = [
            remote.options(scheduling_strategy=place(group, placement_group_bundle_index=index)).remote()
            for index in range(plan.num_processes)
        ]
        places = ray.get([worker.where.remote() for worker in workers])
        order = sorted(range(len(workers)), key=lambda index: (places[index][0], index))
        envs = ranks([places[index][0] for index in order], plan.port or places[order[0]][1])
        tasks = {
            workers[index].work.remote(plan.argv, {**plan.env, **env}, os.getcwd()): rank
            for rank, (index, env) in enumerate(zip(order, envs, strict=True))
        }
        return _wait(ray, plan, tasks)
    finally:
        ray.util.remove_placement_group(group)


def _wait_for_places(ray: Any, group: Any, plan: LaunchPlan, wanted: Mapping[str, int]) -> None:
    """Wait until Ray has a place for each process."""
    ready, _ = ray.wait([group.ready()], timeout=PATIENCE)
    if ready:
        return
    there = ray.cluster_resources()
    have = ", ".join(f"{there.get(name, 0):g} {name}" for name in wanted)
    raise RuntimeError(
        message(
            given=f"{plan.num_processes} processes on a Ray cluster with {have} in all",
            why=f"no place was found for them within {PATIENCE} s",
            allowed=f"as many as there are free places, each with {', '.join(f'{n} {k}' for k, n in wanted.items())}",
            do="start fewer, add machines, or use --cpu; `ray status` shows what is taken",
        )
    )


def _wait(ray: Any, plan: LaunchPlan, tasks: dict[Any, int]) -> int:
    """Return 0 when all processes have ended well, or the code of the first that failed."""
    left = list(tasks)
    while left:
        done, left = ray.wait(left, num_returns=1)
        code = ray.get(done[0])
        if code:
            rank = tasks[done[0]]
            say(f"rank {rank} of {plan.num_processes} {Ending(rank, 0, code)}; the others were stopped")
            return exit_code(code)
    return 0


def ranks(addresses: Sequence[str], port: int) -> list[dict[str, str]]:
    """Return the variables of each process, whose machines are listed one after another."""
    machines = list(dict.fromkeys(addresses))
    return [
        rank_variables(
            rank=rank,
            world_size=len(addresses),
            local_rank=addresses[:rank].count(address),
            local_world_size=addresses.count(address),
            node=machines.index(address),
            nodes=len(machines),
            address=addresses[0],
            port=port,
        )
        for rank, address in enumerate(addresses)
    ]


def _own_address() -> str:
    """Return the address by which other machines reach this one, as Ray knows it."""
    import ray

    return str(ray.util.get_node_ip_address())
