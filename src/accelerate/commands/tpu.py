"""`accelerate tpu-config`: runs commands on every machine of a TPU pod, through gcloud."""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path
from typing import Any

from accelerate.base.messages import message
from accelerate.commands.utils import CustomArgumentParser, run_command

DESCRIPTION = "Run commands on every machine of a TPU pod, to prepare them for `accelerate launch`."
#: Where the commands are run.
FOLDER = "/usr/share"


def tpu_command_parser(subparsers: Any = None) -> argparse.ArgumentParser:
    """Return the parser of `accelerate tpu-config`, added to `subparsers` if given."""
    if subparsers is not None:
        parser = subparsers.add_parser("tpu-config", help=DESCRIPTION, description=DESCRIPTION)
    else:
        parser = CustomArgumentParser("accelerate tpu-config", description=DESCRIPTION)
    parser.set_defaults(func=tpu_command_launcher)
    pod = parser.add_argument_group("The pod", "What isn't given is read from the config file.")
    pod.add_argument("--config_file", default=None, help="The config file; by default the one of `accelerate config`.")
    pod.add_argument("--tpu_name", default=None, help="The name of the TPU.")
    pod.add_argument("--tpu_zone", default=None, help="The zone of the TPU.")
    run = parser.add_argument_group("What is run", f"In {FOLDER}, in this order.")
    run.add_argument("--use_alpha", action="store_true", help="Use `gcloud alpha`.")
    run.add_argument("--install_accelerate", action="store_true", help="Install accelerate before anything else.")
    run.add_argument("--accelerate_version", default="latest", help="Which version: `latest`, or a number.")
    run.add_argument("--command_file", default=None, help="A file with a command on each line.")
    run.add_argument(
        "--command", action="append", nargs="+", default=None, help="A command; may be given several times."
    )
    run.add_argument("--debug", action="store_true", help="Print the gcloud command, and run nothing.")
    return parser


def tpu_command_launcher(args: argparse.Namespace) -> None:
    """Run the commands.

    Raises:
        ValueError: it isn't known which TPU is meant, or what to run.
        FileNotFoundError: there is no such file of commands, or no gcloud.
        subprocess.CalledProcessError: gcloud failed.
    """
    name, argv = _command_line(args)
    if args.debug:
        print(f"Running {' '.join(argv)}")
        return
    try:
        subprocess.run(argv, check=True)
    except FileNotFoundError:
        from accelerate.launchers.gcloud import missing

        raise missing(argv) from None
    print(f"Done on every machine of {name}.")


def _command_line(args: argparse.Namespace) -> tuple[str, list[str]]:
    """Return the name of the TPU, and the call of gcloud."""
    from accelerate.launchers.gcloud import ssh
    from accelerate.launchers.read import cluster_config, default_file

    config = cluster_config(args.config_file or default_file({}))
    name = args.tpu_name or (config.tpu_name if config else None)
    zone = args.tpu_zone or (config.tpu_zone if config else None)
    if not name or not zone:
        raise ValueError(
            message(
                given=f"tpu_name {name!r} and tpu_zone {zone!r}",
                why="gcloud needs both to find the TPU",
                allowed="the name and the zone of a TPU of yours",
                do="give --tpu_name and --tpu_zone, or answer for a TPU pod in `accelerate config`",
            )
        )
    run = "; ".join([f"cd {FOLDER}", *_installation(args), *_commands(args, config)])
    return name, ssh(name, zone, run, alpha=args.use_alpha)


def _installation(args: argparse.Namespace) -> list[str]:
    """Return the command that installs accelerate, if that is wanted.

    Raises:
        ValueError: the version isn't one.
    """
    from packaging.version import InvalidVersion, Version

    if not args.install_accelerate:
        return []
    if args.accelerate_version == "latest":
        return ["pip install accelerate -U"]
    try:
        return [f"pip install accelerate=={Version(args.accelerate_version)}"]
    except InvalidVersion:
        raise ValueError(
            message(
                given=f"--accelerate_version {args.accelerate_version}",
                why="it is no version",
                allowed="`latest`, or a number such as 1.16.0",
                do="leave it out for the latest release; for a checkout, give the pip command with --command",
            )
        ) from None


def _commands(args: argparse.Namespace, config: Any) -> list[str]:
    """Return the commands: those of the flags, else those of the config file."""
    words = args.command or []
    commands = [" ".join(each) if isinstance(each, list) else each for each in words]
    file = args.command_file or (config.command_file if config and not commands else None)
    if file is not None:
        if not Path(file).is_file():
            raise FileNotFoundError(
                message(
                    given=f"command_file {file}",
                    why="there is no such file",
                    allowed="a file with a command on each line",
                    do="correct the path, or give commands with --command",
                )
            )
        commands = [line for line in Path(file).read_text(encoding="utf-8").splitlines() if line.strip()]
    commands = commands or list(config.commands or []) if config else commands
    if not commands and not args.install_accelerate:
        raise ValueError(
            message(
                given="no command",
                why="there is nothing to run",
                allowed="commands in flags, in a file, or in the config file",
                do="add --command 'pip install -r requirements.txt', or --command_file",
            )
        )
    return commands


def main() -> None:
    """Run `accelerate tpu-config` as a program of its own."""
    run_command(tpu_command_launcher, tpu_command_parser().parse_args(sys.argv[1:]))


if __name__ == "__main__":
    main()
