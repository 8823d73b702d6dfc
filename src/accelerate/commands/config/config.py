"""`accelerate config`: asks, shows the config file, and writes it."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from accelerate.commands.utils import CustomArgumentParser, run_command
from accelerate.config.cluster import ClusterConfig
from accelerate.config.enums import ComputeEnvironment
from accelerate.config.option import option_of
from accelerate.config.sagemaker import SageMakerConfig
from accelerate.config.schema import BaseConfig

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


def get_user_input() -> ClusterConfig | SageMakerConfig:
    """Ask on the terminal where the program runs and what that needs to know, and return the answers."""
    from accelerate.commands.config.cluster import get_cluster_input
    from accelerate.commands.config.sagemaker import ensure_role, get_sagemaker_input

    if choose_environment() == ComputeEnvironment.LOCAL_MACHINE:
        return get_cluster_input()
    config = get_sagemaker_input()
    ensure_role(config, agrees)
    return config


def choose_environment() -> ComputeEnvironment:
    """Ask where the program runs; the present config file gives the suggestion."""
    from accelerate.config.questionnaire import on_terminal
    from accelerate.launchers.read import default_file, file_config

    known = file_config(default_file({}))
    declared = option_of(BaseConfig, "compute_environment")
    present = ComputeEnvironment.LOCAL_MACHINE if known is None else known.compute_environment
    return ComputeEnvironment(declared.read(on_terminal(declared, present, None), "the answer"))


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
    if (
        path.exists()
        and path.read_text(encoding="utf-8") != text
        and not agrees(f"Replace {path}, which says something else?")
    ):
        print(f"Left {path} as it is")
        return
    print(f"Wrote the configuration to {write_config(path, content)}")


def agrees(question: str) -> bool:
    """Ask a question that a person has to say yes to."""
    import questionary

    return bool(questionary.confirm(question, default=False).unsafe_ask())


def main() -> None:
    """Run the questionnaire as a program of its own."""
    run_command(config_command, config_command_parser().parse_args())


if __name__ == "__main__":
    main()
