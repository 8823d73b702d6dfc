"""What launchers do, as scripts import it: each plan's command line and environment, on the arguments of a launch."""

from __future__ import annotations

import argparse
import os
from typing import TYPE_CHECKING

from accelerate.base.environ import current, read
from accelerate.config.env import to_env
from accelerate.config.option import options
from accelerate.config.parallelism_settings import ParallelismSettings
from accelerate.launchers import doors
from accelerate.launchers.environment import USE_MESH
from accelerate.launchers.prepared import PrepareForLaunch
from accelerate.launchers.sagemaker import prepare_sagemager_args_inputs
from accelerate.launchers.sagemaker_job import hyperparameters as _convert_nargs_to_dict
from accelerate.launchers.tpu import tpu_variables

if TYPE_CHECKING:
    from accelerate.launchers.plan import LaunchPlan

__all__ = [
    "PrepareForLaunch",
    "_convert_nargs_to_dict",
    "env_var_path_add",
    "prepare_deepspeed_cmd_env",
    "prepare_extend_env_parallelism_config",
    "prepare_multi_gpu_env",
    "prepare_sagemager_args_inputs",
    "prepare_simple_launcher_cmd_env",
    "prepare_tpu",
    "test_launch",
]


def prepare_simple_launcher_cmd_env(args: argparse.Namespace) -> tuple[list[str], dict[str, str]]:
    """Return the command line that starts the script once, or by mpirun, and its whole environment."""
    plan = doors.plan(doors.simple(args))
    return list(plan.argv), _whole(plan)


def prepare_multi_gpu_env(args: argparse.Namespace) -> dict[str, str]:
    """Return the whole environment of processes that torch starts; `args` gets the arguments of torchrun."""
    plan = doors.plan(doors.multi_gpu(args))
    _for_torchrun(args, plan)
    return _whole(plan)


def prepare_deepspeed_cmd_env(args: argparse.Namespace) -> tuple[list[str] | None, dict[str, str]]:
    """Return the command line of DeepSpeed's runner, None where torch starts the processes, and the environment.

    Without a command line, `args` gets the arguments of torchrun.
    """
    launcher, settings = doors.deepspeed(args)
    plan = launcher.plan(settings)
    if settings.deepspeed_runner is not None:
        return list(plan.argv), _whole(plan)
    _for_torchrun(args, plan)
    return None, _whole(plan)


def prepare_tpu(
    args: argparse.Namespace, current_env: dict[str, str], pod: bool = False
) -> tuple[argparse.Namespace, dict[str, str]]:
    """Add to `current_env` what torch_xla is told, and return both; `args` gets the machines of a pod."""
    settings = doors.settings_of(args)
    current_env.update(tpu_variables(settings))
    if settings.get("debug"):
        current_env["ACCELERATE_DEBUG_MODE"] = "true"
    if pod:
        args.vm, args.env = settings.get("vm"), settings.get("env")
    return args, current_env


def prepare_extend_env_parallelism_config(args: argparse.Namespace, current_env: dict[str, str]) -> dict[str, str]:
    """Add to `current_env` how processes are laid out, and return it."""
    current_env[USE_MESH] = "true"
    current_env.update(to_env(options(ParallelismSettings).values(), vars(args)))
    return current_env


def env_var_path_add(env_var_name: str, path_to_add: str) -> str:
    """Return what a variable with a list of folders is with one more at its end."""
    before = read(env_var_name)
    return os.pathsep.join([*([before] if before else []), str(path_to_add)])


def test_launch() -> None:
    """Build a `PartialState`, as a function to start processes with that shows whether they find each other."""
    from accelerate.state import PartialState

    PartialState()


def _whole(plan: LaunchPlan) -> dict[str, str]:
    """Return the environment of this process with what a plan adds."""
    return {**current(), **plan.env}


def _for_torchrun(args: argparse.Namespace, plan: LaunchPlan) -> None:
    """Set the arguments of torchrun that a plan settles."""
    args.nproc_per_node = str(plan.processes_here)
    if plan.num_machines > 1:
        args.nnodes, args.node_rank = str(plan.num_machines), plan.machine_rank
        args.rdzv_endpoint = f"{plan.address}:{plan.port}"
    if plan.port:
        args.master_addr, args.master_port = plan.address, str(plan.port)
    else:
        args.standalone = True
