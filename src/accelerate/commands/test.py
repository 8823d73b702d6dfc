"""`accelerate test`: launches the self test with the configuration that a training would get."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from accelerate.commands.utils import CustomArgumentParser, run_command
from accelerate.config.flags import add_options, explicit
from accelerate.launchers.settings import DECLARED

DESCRIPTION = "Check that the configuration trains correctly on this machine."
SUCCESS = "All checks passed: this configuration trains correctly."


def test_command_parser(subparsers: Any = None) -> argparse.ArgumentParser:  # noqa: PT028 (a command, not a test)
    """Return the parser of `accelerate test`, added to `subparsers` if given; it takes the flags of `launch`."""
    usage = "accelerate test [options of accelerate launch]"
    if subparsers is not None:
        parser = subparsers.add_parser("test", help=DESCRIPTION, description=DESCRIPTION, usage=usage)
        parser.set_defaults(func=test_command)
    else:
        parser = CustomArgumentParser("accelerate test", description=DESCRIPTION, usage=usage)
    parser.add_argument(
        "--config_file", default=None, help="The config file; by default the one of `accelerate config`."
    )
    add_options(parser, *DECLARED)
    return parser


def test_command(args: argparse.Namespace) -> None:
    """Run the self test on the processes that `args` and the config file ask for.

    Raises:
        subprocess.CalledProcessError: a check failed; the output says which.
    """
    from accelerate.commands.launch import launch_command, launch_command_parser

    script = Path(__file__).parents[1] / "test_utils" / "scripts" / "test_script.py"
    launch = launch_command_parser().parse_args([str(script)])
    launch.config_file = args.config_file
    vars(launch).update(explicit(args, *DECLARED))
    launch_command(launch)
    print(SUCCESS)


def main() -> None:
    """Run `accelerate test` as a program of its own."""
    run_command(test_command, test_command_parser().parse_args())


if __name__ == "__main__":
    main()
