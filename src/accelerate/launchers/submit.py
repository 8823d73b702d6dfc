"""Jobs for a batch system: `accelerate launch --submit slurm` writes the batch script of a run, and submits it.

The job has one task on each machine, `accelerate launch` with the flags that were given; what SLURM knows (machines,
ranks, where they meet) is left out, and found there by `accelerate.launchers.slurm`.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import ClassVar

from accelerate.base.messages import message
from accelerate.launchers.base import Launcher
from accelerate.launchers.command import typed
from accelerate.launchers.console import say
from accelerate.launchers.plan import LaunchPlan
from accelerate.launchers.settings import LaunchSettings

#: Settings that are about the submission, or that SLURM knows inside of the job.
NOT_HANDED_ON = ("submit", "submit_args", "dry_run", "num_machines", "machine_rank", "main_process_ip")
SBATCH = ("sbatch", "--parsable")


class SubmitLauncher(Launcher):
    """Submits the run as a batch job, and returns once it is in the queue."""

    name = "slurm job"
    without_effect: ClassVar[Mapping[str, str]] = dict.fromkeys(
        ("machine_rank", "main_process_ip"), "SLURM knows the machines"
    )

    def accepts(self, config: LaunchSettings) -> bool:
        """Return whether the run is to be submitted."""
        return config.get("submit") is not None

    def plan(self, config: LaunchSettings) -> LaunchPlan:
        """Return the submission: the command, and the batch script that it reads."""
        return LaunchPlan(
            launcher=self.name,
            argv=SBATCH,
            stdin="\n".join([*_header(config), "", *_body(config), ""]),
            num_processes=config.num_processes,
            num_machines=config.num_machines,
            script=config.script,
        )

    def run(self, plan: LaunchPlan) -> int:
        """Submit the job, keep its batch script beside it, and return the exit code of `sbatch`.

        Raises:
            FileNotFoundError: there is no `sbatch`.
        """
        try:
            done = subprocess.run(plan.argv, input=plan.stdin, stdout=subprocess.PIPE, text=True, check=False)
        except FileNotFoundError:
            raise FileNotFoundError(
                message(
                    given="--submit slurm",
                    why="there is no `sbatch` on the PATH",
                    allowed="a machine from which jobs can be submitted",
                    do="log in to one, or see the batch script with --dry_run",
                )
            ) from None
        if done.returncode == 0:
            job = done.stdout.strip().partition(";")[0]
            kept = Path(f"{Path(plan.script).stem}-{job}.sbatch")
            kept.write_text(plan.stdin, encoding="utf-8")
            say(f"submitted job {job}; its script is {kept}, its output goes to slurm-{job}.out")
        return done.returncode


def _header(config: LaunchSettings) -> Iterator[str]:
    """Yield the lines that ask for resources; what --submit_args says comes last, and wins."""
    yield "#!/bin/bash"
    yield f"#SBATCH --job-name={Path(config.script).stem}"
    yield f"#SBATCH --nodes={config.num_machines}"
    yield "#SBATCH --ntasks-per-node=1"
    if not config.cpu_is_chosen and config.num_processes_is_said:
        yield f"#SBATCH --gpus-per-node={config.processes_here}"
    for word in _joined(shlex.split(config.get("submit_args") or "")):
        yield f"#SBATCH {word}"


def _joined(words: list[str]) -> list[str]:
    """Return flags with their values in one piece each: `-p gpu --time=1:00` is `-p gpu`, `--time=1:00`."""
    found: list[str] = []
    for word in words:
        if word.startswith("-") or not found:
            found.append(word)
        else:
            found[-1] += f" {word}"
    return found


def _body(config: LaunchSettings) -> Iterator[str]:
    """Yield the lines that start the run."""
    yield f"cd {shlex.quote(os.getcwd())}"
    launch = [sys.executable, "-m", "accelerate.commands.launch"]
    if config.file is not None:
        launch += ["--config_file", str(Path(config.file).absolute())]
    yield shlex.join(["srun", *launch, *typed(config, NOT_HANDED_ON), config.script, *config.arguments])
