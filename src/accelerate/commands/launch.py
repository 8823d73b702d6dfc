"""`accelerate launch`: flags and config file become settings, settings a plan, and the plan is carried out.

The rules are in `accelerate.launchers`; here is what a person types and reads.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from typing import TYPE_CHECKING, Any

from accelerate.commands.utils import CustomArgumentParser, run_command
from accelerate.config.flags import add_options
from accelerate.launchers.settings import DECLARED, LaunchSettings

if TYPE_CHECKING:
    from accelerate.config.sagemaker import SageMakerConfig
    from accelerate.launchers.base import Launcher

DESCRIPTION = "Start a script: one process, one for each accelerator, or as many as --num_processes says."
EPILOG = (
    "Flags come before the script; what follows it is passed on. A flag wins over the config file, and the config "
    "file over the environment. --num_processes and --num-processes are the same flag."
)


def launch_command_parser(subparsers: Any = None) -> argparse.ArgumentParser:
    """Return the parser of `accelerate launch`, added to `subparsers` if they are given."""
    facts = {"usage": "accelerate launch [options] script [arguments]", "description": DESCRIPTION, "epilog": EPILOG}
    if subparsers is not None:
        parser = subparsers.add_parser("launch", help=DESCRIPTION, **facts)
        parser.set_defaults(func=launch_command)
    else:
        parser = CustomArgumentParser("accelerate launch", **facts)
    parser.add_argument(
        "--config_file", default=None, help="The config file; by default the one of `accelerate config`."
    )
    add_options(parser, *DECLARED)
    parser.add_argument("training_script", metavar="script", help="The script to start.")
    rest = parser.add_argument(
        "training_script_args", metavar="arguments", nargs=argparse.REMAINDER, help="What it is passed."
    )
    rest.required = False
    return parser


def launch_command(args: argparse.Namespace) -> None:
    """Start the script that `args` names, and return when it has ended well.

    Raises:
        ValueError, FileNotFoundError: the settings can't be launched.
        subprocess.CalledProcessError: the script failed; with `quiet`, SystemExit with its exit code.
        KeyboardInterrupt: Ctrl-C ended it.
    """
    from accelerate.launchers.doors import settings_of
    from accelerate.launchers.registry import select

    settings = settings_of(args)
    _carry_out(select(settings), settings)


def _carry_out(launcher: Launcher, settings: LaunchSettings) -> None:
    """Check the settings, and start what the launcher makes of them."""
    from accelerate.launchers.checks import check
    from accelerate.launchers.console import say
    from accelerate.launchers.installed import check_installed

    check(settings)
    plan = launcher.plan(settings)
    if settings.get("dry_run"):
        print(plan, settings, sep="\n")
        return
    check_installed(settings)
    for line in [] if settings.get("quiet") else [*launcher.ignored(settings), *settings.chosen_for_you()]:
        say(line)
    code = launcher.run(plan)
    if code and settings.get("quiet"):
        sys.exit(code)
    if code:
        raise subprocess.CalledProcessError(code, list(plan.argv))


def simple_launcher(args: argparse.Namespace) -> None:
    """Start the script once, or by mpirun where `args` names a hostfile for it; otherwise as :func:`launch_command`."""
    from accelerate.launchers.doors import simple

    _carry_out(*simple(args))


def multi_gpu_launcher(args: argparse.Namespace) -> None:
    """Start the processes of this machine through torch; otherwise as :func:`launch_command`."""
    from accelerate.launchers.doors import multi_gpu

    _carry_out(*multi_gpu(args))


def deepspeed_launcher(args: argparse.Namespace) -> None:
    """Start a run with DeepSpeed; otherwise as :func:`launch_command`."""
    from accelerate.launchers.doors import deepspeed

    _carry_out(*deepspeed(args))


def tpu_launcher(args: argparse.Namespace) -> None:
    """Start the main function of the script on every core of a TPU; otherwise as :func:`launch_command`."""
    from accelerate.launchers.doors import tpu

    _carry_out(*tpu(args))


def tpu_pod_launcher(args: argparse.Namespace) -> None:
    """Start the run on every machine of a TPU pod; otherwise as :func:`launch_command`."""
    from accelerate.launchers.doors import tpu_pod

    _carry_out(*tpu_pod(args))


def sagemaker_launcher(sagemaker_config: SageMakerConfig, args: argparse.Namespace) -> None:
    """Run a script as a job on Amazon SageMaker, and return when it has ended well.

    Args:
        sagemaker_config: what the config file says.
        args: the parsed command line of a launch.
    """
    from accelerate.launchers.sagemaker import sagemaker_launcher

    sagemaker_launcher(sagemaker_config, args)


def _validate_launch_command(args: argparse.Namespace) -> tuple[argparse.Namespace, Any, bool]:
    """Return `args` completed, the content of the config file (or None), and whether the precision comes from it.

    Raises:
        ValueError, FileNotFoundError: the settings can't be launched.
    """
    from accelerate.launchers.checks import check
    from accelerate.launchers.doors import settings_of
    from accelerate.launchers.read import file_config

    settings = settings_of(args)
    check(settings)
    for dest, found in settings.found.items():
        setattr(args, dest, found.value)
    args.num_processes, args.num_machines, args.use_cpu = settings.num_processes, settings.num_machines, settings.on_cpu
    args.mixed_precision = settings.get("mixed_precision")
    args.use_deepspeed, args.use_fsdp, args.tpu = settings.uses_deepspeed, settings.uses_fsdp, settings.on_tpu
    plain = not (settings.uses_deepspeed or settings.uses_fsdp or settings.on_tpu)
    args.multi_gpu = plain and not settings.on_cpu and settings.num_processes > 1
    from_file = "mixed_precision" in settings.found and not settings.is_flag("mixed_precision")
    return args, file_config(settings.file), from_file


def main() -> None:
    """Run `accelerate launch` as a program of its own."""
    run_command(launch_command, launch_command_parser().parse_args())


if __name__ == "__main__":
    main()
