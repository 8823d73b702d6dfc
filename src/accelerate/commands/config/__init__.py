"""`accelerate config`: questions, a default file without questions, and the rewriting of an older file."""

from __future__ import annotations

import argparse
from typing import Any

from accelerate.commands.config.config import config_command_parser
from accelerate.commands.config.config_args import default_config_file, load_config_from_file
from accelerate.commands.config.default import default_command_parser
from accelerate.commands.config.update import update_command_parser
from accelerate.commands.utils import run_command

__all__ = ["default_config_file", "get_config_parser", "load_config_from_file", "main"]


def get_config_parser(subparsers: Any = None) -> argparse.ArgumentParser:
    """Return the parser of `accelerate config`, added to `subparsers` if they are given."""
    parser = config_command_parser(subparsers)
    commands = parser.add_subparsers(title="subcommands", dest="subcommand")
    default_command_parser(commands, [])
    update_command_parser(commands, [])
    return parser


def main() -> None:
    """Run `accelerate config` as a program of its own."""
    args = get_config_parser().parse_args()
    run_command(args.func, args)
