"""`accelerate`: finds the command and hands over. Only the module of the command that is wanted is imported."""

from __future__ import annotations

import importlib
import sys
from dataclasses import dataclass

from accelerate.commands.utils import CustomArgumentParser, run_command

PROG = "accelerate"


@dataclass(frozen=True)
class Command:
    """One command of the command line.

    Args:
        parser: "module:function"; the function adds the command's parser to the subparsers it is given.
        help: what it does, in a line.
    """

    parser: str
    help: str


#: A new command is a line here.
COMMANDS: dict[str, Command] = {
    "completion": Command(
        "accelerate.commands.completion:completion_command_parser", "print what a shell needs to complete commands"
    ),
    "config": Command("accelerate.commands.config:get_config_parser", "answer questions, and write the config file"),
    "doctor": Command(
        "accelerate.commands.doctor:doctor_command_parser", "check what makes runs fail before they start"
    ),
    "env": Command("accelerate.commands.env:env_command_parser", "print the facts that a bug report needs"),
    "estimate-memory": Command(
        "accelerate.commands.estimate:estimate_command_parser", "estimate the memory that a model takes"
    ),
    "launch": Command(
        "accelerate.commands.launch:launch_command_parser", "start a script, on as many processes as wanted"
    ),
    "map": Command("accelerate.commands.map:map_command_parser", "show where the parts of a model would go"),
    "merge-weights": Command(
        "accelerate.commands.merge:merge_command_parser", "merge the shards of a saved model into one file of weights"
    ),
    "test": Command("accelerate.commands.test:test_command_parser", "check that the configuration trains correctly"),
    "to-fsdp2": Command(
        "accelerate.commands.to_fsdp2:to_fsdp2_command_parser", "turn a config file of FSDP 1 into one of FSDP 2"
    ),
    "tpu-config": Command("accelerate.commands.tpu:tpu_command_parser", "run commands on every machine of a TPU pod"),
}


def build_parser(wanted: str | None) -> tuple[CustomArgumentParser, dict[str, CustomArgumentParser]]:
    """Return the parser of `accelerate` and those of its commands; only the `wanted` one has its flags."""
    parser = CustomArgumentParser(
        PROG, usage=f"{PROG} <command> [<args>]", description="Run PyTorch training anywhere."
    )
    subparsers = parser.add_subparsers(
        title="commands", metavar="<command>", prog=PROG, parser_class=CustomArgumentParser
    )
    for name, command in COMMANDS.items():
        if name == wanted:
            module, _, function = command.parser.partition(":")
            getattr(importlib.import_module(module), function)(subparsers=subparsers)
        else:
            subparsers.add_parser(name, help=command.help, add_help=False)
    return parser, dict(subparsers.choices)


def main() -> None:
    """Run the command that the command line names; without one, print the help and exit with code 1."""
    wanted = sys.argv[1] if len(sys.argv) > 1 else None
    parser, commands = build_parser(wanted)
    args, rest = parser.parse_known_args()
    if rest:
        commands.get(str(wanted), parser).error(f"unrecognized arguments: {' '.join(rest)}")
    if not hasattr(args, "func"):
        parser.print_help()
        sys.exit(1)
    run_command(args.func, args)


if __name__ == "__main__":
    main()
