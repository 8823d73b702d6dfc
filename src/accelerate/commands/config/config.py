"""`accelerate config`: asks, shows the config file, and writes it."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
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
    """Ask, and write the answers to the config file; one that says something else is replaced if a person agrees.

    Raises:
        ValueError: there is no terminal to ask on.
    """
    from accelerate.base.messages import message
    from accelerate.config.files import default_config_path, rendered, write_config

    if not sys.stdin.isatty():
        raise ValueError(
            message(
                given="accelerate config, with input that isn't a terminal",
                why="it asks questions and waits for the answers",
                allowed="a terminal, or a command that asks nothing",
                do="run `accelerate config default`, or give `accelerate launch` the flags you need",
            )
        )
    path = Path(args.config_file or default_config_path())
    content = get_user_input().to_dict()
    text = rendered(path, content)
    print(f"\n{path}:\n\n{text}")
    if path.exists() and path.read_text(encoding="utf-8") != text and not overwrite(path):
        print(f"Left {path} as it is")
        return
    print(f"Wrote the configuration to {write_config(path, content)}")


def overwrite(path: Path) -> bool:
    """Ask whether the file that is there may be replaced."""
    import questionary

    return bool(questionary.confirm(f"Replace {path}, which says something else?", default=False).unsafe_ask())


def main() -> None:
    """Run the questionnaire as a program of its own."""
    run_command(config_command, config_command_parser().parse_args())


if __name__ == "__main__":
    main()
