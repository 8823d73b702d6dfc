"""`accelerate config`: asks, and writes the config file."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from accelerate.commands.utils import CustomArgumentParser, run_command
from accelerate.config.cluster import ClusterConfig

DESCRIPTION = "Answer questions about the machine and the training, and write the config file of `accelerate launch`."


def config_command_parser(subparsers: Any = None) -> argparse.ArgumentParser:
    """Return the parser of the questionnaire, added to `subparsers` if they are given."""
    if subparsers is not None:
        parser = subparsers.add_parser("config", help=DESCRIPTION, description=DESCRIPTION)
    else:
        parser = CustomArgumentParser("accelerate config", description=DESCRIPTION)
    parser.set_defaults(func=config_command)
    parser.add_argument(
        "--config_file",
        default=None,
        help="The file to write, JSON if it ends in .json; by default the one that launch reads.",
    )
    return parser


def get_user_input() -> ClusterConfig:
    """Ask on the terminal, and return the answers."""
    from accelerate.commands.config.cluster import get_cluster_input

    return get_cluster_input()


def config_command(args: argparse.Namespace) -> None:
    """Ask, and write the answers to the config file.

    Raises:
        ValueError: there is no terminal to ask on.
    """
    from accelerate.base.messages import message
    from accelerate.config.files import default_config_path, write_config

    if not sys.stdin.isatty():
        raise ValueError(
            message(
                given="accelerate config, with input that isn't a terminal",
                why="it asks questions and waits for the answers",
                allowed="a terminal, or a command that asks nothing",
                do="run `accelerate config default`, or give `accelerate launch` the flags you need",
            )
        )
    path = write_config(args.config_file or default_config_path(), get_user_input().to_dict())
    print(f"Wrote the configuration to {path}")


def main() -> None:
    """Run the questionnaire as a program of its own."""
    run_command(config_command, config_command_parser().parse_args())


if __name__ == "__main__":
    main()
