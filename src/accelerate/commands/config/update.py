"""`accelerate config update`: an older config file in today's words, with what it leaves out filled in."""

from __future__ import annotations

import argparse
import warnings
from pathlib import Path
from typing import Any

DESCRIPTION = "Rewrite a config file of an earlier release in today's words; what it says stays as it is."


def update_config(args: argparse.Namespace) -> Path:
    """Rewrite the config file that `args` names, by default the one of `accelerate config`, and return its path.

    Raises:
        ValueError: there is no such file, or its content isn't a config.
    """
    from accelerate.base.messages import message
    from accelerate.config.files import default_config_path, write_config
    from accelerate.config.load import load_config

    path = Path(args.config_file or default_config_path())
    if not path.is_file():
        raise ValueError(
            message(
                given=f"config file {path}",
                why="there is no such file to update",
                allowed="an existing YAML or JSON file",
                do="correct the path, or write a file with `accelerate config`",
            )
        )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # of old spellings, which are replaced right now
        return write_config(path, load_config(path).to_dict())


def update_command_parser(parser: Any, parents: list[argparse.ArgumentParser]) -> argparse.ArgumentParser:
    """Return the parser of `accelerate config update`, added to the subparsers `parser`."""
    added = parser.add_parser("update", parents=parents, help=DESCRIPTION, description=DESCRIPTION)
    added.add_argument("--config_file", default=None, help="The file to rewrite; by default the one that launch reads.")
    added.set_defaults(func=update_config_command)
    return added


def update_config_command(args: argparse.Namespace) -> None:
    """Rewrite the file, and say so."""
    print(f"Rewrote {update_config(args)}")
