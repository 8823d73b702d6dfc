"""What SLURM tells a process that srun has started: its place among the tasks of the step, and where they can meet.

Source: the environment variables of `man srun`. The script of a batch job and an interactive shell have a job, too, but
are no task among several: only `SLURM_STEP_NUM_TASKS` tells them apart.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

#: The first port of the range that jobs meet in, and its size.
FIRST_PORT, PORTS = 15000, 15000


@dataclass(frozen=True)
class Step:
    """One task of a job step.

    Args:
        rank: which of `tasks` it is.
        tasks: how many tasks the step has, over all machines.
        local_rank: which of the tasks on its machine it is.
        local_tasks: how many these are.
        node: which of `nodes` machines it is on.
        nodes: on how many machines the step runs.
        address: the name of the first of them.
        port: a port that steps of other jobs don't choose.
        cores: how many cores a task has, if that was asked for.
    """

    rank: int
    tasks: int
    local_rank: int
    local_tasks: int
    node: int
    nodes: int
    address: str
    port: int
    cores: int | None = None

    @classmethod
    def of(cls, environ: Mapping[str, str]) -> Step | None:
        """Return the task that these variables describe; None outside of a step, and for its only task."""
        tasks = int(environ.get("SLURM_STEP_NUM_TASKS", "1"))
        if tasks < 2 or "SLURM_PROCID" not in environ:
            return None
        node = int(environ.get("SLURM_NODEID", "0"))
        per_node = tasks_per_node(environ.get("SLURM_STEP_TASKS_PER_NODE", str(tasks)))
        cores = environ.get("SLURM_CPUS_PER_TASK")
        job, step = int(environ.get("SLURM_JOB_ID", "0")), int(environ.get("SLURM_STEP_ID", "0"))
        return cls(
            rank=int(environ["SLURM_PROCID"]),
            tasks=tasks,
            local_rank=int(environ.get("SLURM_LOCALID", "0")),
            local_tasks=per_node[node] if node < len(per_node) else 1,
            node=node,
            nodes=int(environ.get("SLURM_STEP_NUM_NODES", "1")),
            address=first_host(environ.get("SLURM_STEP_NODELIST", "127.0.0.1")),
            port=FIRST_PORT + (job * 10 + step) % PORTS,
            cores=int(cores) if cores else None,
        )

    @property
    def one_per_node(self) -> bool:
        """Whether each machine has one task, which starts the processes of that machine."""
        return self.tasks == self.nodes


def first_host(nodes: str) -> str:
    """Return the first machine of a list such as `gpu[03-07,9],login1`."""
    first = re.split(r",(?![^\[]*\])", nodes, maxsplit=1)[0]
    return re.sub(r"\[([^\],-]+)[^\]]*\]", r"\1", first)


def tasks_per_node(text: str) -> list[int]:
    """Return how many tasks each machine has, from SLURM's short form: `2(x3),1` is 2, 2, 2, 1."""
    counts = []
    for part in text.split(","):
        number, _, times = part.partition("(x")
        counts += [int(number)] * int(times.rstrip(")") or 1)
    return counts
