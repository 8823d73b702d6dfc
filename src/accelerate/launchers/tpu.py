"""Runs on a TPU: torch_xla starts a process on each core of this machine (`--tpu`) or of a pod (`--tpu_cluster`).

A pod is reached by ssh through gcloud; on each of its machines the same launch is run without the pod. The variables
travel in the command, since ssh hands on none.
"""

from __future__ import annotations

import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from types import FrameType
from typing import ClassVar

from accelerate.base.messages import message
from accelerate.launchers import gcloud
from accelerate.launchers.alone import ENDING_SIGNALS, signals_handled
from accelerate.launchers.base import Launcher
from accelerate.launchers.command import typed
from accelerate.launchers.environment import environment
from accelerate.launchers.plan import HOST, LaunchPlan
from accelerate.launchers.settings import LaunchSettings
from accelerate.launchers.watch import exit_code

ON_TPU = ("-m", "accelerate.launchers.on_tpu")
BY_XLA = "torch_xla starts the processes"
#: Settings of torch's launcher, and of processes that it starts.
OF_TORCHRUN = (
    "max_restarts", "log_dir", "tee", "role", "monitor_interval", "rdzv_backend", "rdzv_conf", "same_network",
    "watchdog", "gpu_ids", "enable_cpu_affinity", "machine_rank", "main_process_ip", "main_process_port",
)  # fmt: skip
#: Settings that lead to the pod, or that mean nothing on one of its machines.
OF_THE_POD = (
    "tpu", "tpu_use_cluster", "tpu_use_sudo", "vm", "env", "dry_run", "num_machines", "machine_rank", "main_process_ip",
    "main_process_port",
)  # fmt: skip
ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=.*", re.DOTALL)
#: Seconds that ssh gets to end when another machine has failed.
GRACE = 5.0


class TpuLauncher(Launcher):
    """Has torch_xla call the main function of the script on every core of this machine."""

    name = "tpu"
    without_effect: ClassVar[Mapping[str, str]] = {
        **dict.fromkeys(OF_TORCHRUN, BY_XLA),
        **dict.fromkeys(("tpu_use_sudo", "vm", "env"), "only a pod is reached by ssh (--tpu_cluster)"),
    }

    def accepts(self, config: LaunchSettings) -> bool:
        """Return whether the run is one on a TPU."""
        return config.on_tpu

    def plan(self, config: LaunchSettings) -> LaunchPlan:
        """Return the command line of the process that torch_xla starts the others from."""
        number = ("--processes", str(config.num_processes)) if config.num_processes_is_said else ()
        module = ("--module",) if config.get("module") else ()
        function = ("--function", config.get("main_training_function"))
        return LaunchPlan(
            launcher=self.name,
            argv=(sys.executable, *ON_TPU, *function, *number, *module, config.script, *config.arguments),
            env={**environment(config), **tpu_variables(config)},
            num_processes=config.num_processes if config.num_processes_is_said else 0,
            script=config.script,
        )


class TpuPodLauncher(Launcher):
    """Runs the launch on every machine of a pod."""

    name = "tpu pod"
    without_effect: ClassVar[Mapping[str, str]] = dict.fromkeys(OF_TORCHRUN, BY_XLA)

    def accepts(self, config: LaunchSettings) -> bool:
        """Return whether the run is one on a pod."""
        return config.on_tpu and bool(config.get("tpu_use_cluster"))

    def plan(self, config: LaunchSettings) -> LaunchPlan:
        """Return the call of gcloud.

        Raises:
            ValueError: nothing says which TPU is meant, or a variable isn't one.
        """
        hosts = tuple(config.get("vm") or ([config.get("tpu_name")] if config.get("tpu_name") else []))
        if not hosts:
            raise ValueError(
                message(
                    given="--tpu_cluster without a TPU",
                    why="gcloud needs its name",
                    allowed="`tpu_name: NAME` in the config file, or --vm NAME",
                    do="add --vm NAME; `gcloud compute tpus tpu-vm list` shows what there is",
                )
            )
        command = shlex.join(_on_each(config))
        return LaunchPlan(
            launcher=self.name,
            argv=tuple(gcloud.ssh(HOST, config.get("tpu_zone"), command)),
            num_processes=config.num_processes if config.num_processes_is_said else 0,
            script=config.script,
            hosts=hosts,
        )

    def run(self, plan: LaunchPlan) -> int:
        """Run the command on all machines at once, and stop the others when one fails.

        Raises:
            FileNotFoundError: there is no gcloud.
            KeyboardInterrupt: Ctrl-C ended the connections; SystemExit for another signal.
        """
        try:
            with signals_handled(_leave):
                return _run_at_once(plan.commands)
        except FileNotFoundError:
            raise gcloud.missing(plan.argv) from None


def tpu_variables(config: LaunchSettings) -> dict[str, str]:
    """Return what torch_xla up to 2.7 is told about bf16: that fp32 is, or that fp32 is and double is fp32."""
    if config.get("mixed_precision") != "bf16":
        return {}
    return {"XLA_DOWNCAST_BF16" if config.get("downcast_bf16") else "XLA_USE_BF16": "1"}


def _on_each(config: LaunchSettings) -> list[str]:
    """Return the words that start the run on one machine of the pod."""
    for one in config.get("env") or []:
        if not ASSIGNMENT.fullmatch(one):
            raise ValueError(
                message(
                    given=f"--env {one}",
                    why="it sets no variable",
                    allowed="NAME=VALUE, the name of letters, digits and _",
                    do="write --env NAME=VALUE, once for each variable",
                )
            )
    sudo = ["sudo"] if config.get("tpu_use_sudo") else []
    variables = [f"{name}={value}" for name, value in {"ACCELERATE_IN_TPU_POD": "1", **tpu_variables(config)}.items()]
    flags = ["--tpu", "--no_tpu_cluster", *typed(config, OF_THE_POD, ("flag", "file"))]
    launch = ["accelerate", "launch", *flags, config.script, *config.arguments]
    return [*sudo, "env", *variables, *(config.get("env") or []), *launch]


def _leave(number: int, frame: FrameType | None) -> None:
    """End the launch, and with it the connections, at a signal that asks for it."""
    if number == signal.SIGINT:
        raise KeyboardInterrupt
    if signal.Signals(number).name in ENDING_SIGNALS:
        raise SystemExit(128 + number)


def _run_at_once(commands: Sequence[Sequence[str]]) -> int:
    """Return 0 when all commands have ended well, or the code of the first that failed."""
    started: list[subprocess.Popen[bytes]] = []
    try:
        for command in commands:
            started.append(subprocess.Popen(command))
        while any(process.poll() is None for process in started) and not any(process.poll() for process in started):
            time.sleep(0.05)
        return next((exit_code(process.returncode) for process in started if process.poll()), 0)
    finally:
        for process in started:
            process.terminate()
        for process in started:
            try:
                process.wait(GRACE)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
