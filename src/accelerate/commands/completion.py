"""`accelerate completion`: what a shell needs to complete commands, flags and their choices, read off the parsers."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from typing import Any

from accelerate.commands.utils import CustomArgumentParser, run_command

DESCRIPTION = "Print what a shell needs to complete commands and flags."
EPILOG = (
    "bash: add `source <(accelerate completion bash)` to ~/.bashrc. zsh: the same with `zsh`, in ~/.zshrc. "
    "fish: accelerate completion fish > ~/.config/fish/completions/accelerate.fish"
)
#: Flags after a dash, choices after a flag that has some, files otherwise.
BASH = """_accelerate() {{
    local current=${{COMP_WORDS[COMP_CWORD]}} previous=${{COMP_WORDS[COMP_CWORD-1]}} flags="" choices=""
    if (( COMP_CWORD == 1 )); then
        COMPREPLY=($(compgen -W "{commands}" -- "$current"))
        return
    fi
    case ${{COMP_WORDS[1]}} in
{cases}
    esac
    if [[ -n $choices ]]; then
        COMPREPLY=($(compgen -W "$choices" -- "$current"))
    elif [[ $current == -* ]]; then
        COMPREPLY=($(compgen -W "$flags" -- "$current"))
    else
        compopt -o filenames 2> /dev/null
        COMPREPLY=($(compgen -f -- "$current"))
    fi
}}
complete -F _accelerate accelerate
"""


def completion_command_parser(subparsers: Any = None) -> argparse.ArgumentParser:
    """Return the parser of `accelerate completion`, added to `subparsers` if given."""
    facts = {"description": DESCRIPTION, "epilog": EPILOG}
    if subparsers is not None:
        parser = subparsers.add_parser("completion", help=DESCRIPTION, **facts)
        parser.set_defaults(func=completion_command)
    else:
        parser = CustomArgumentParser("accelerate completion", **facts)
    parser.add_argument("shell", choices=sorted(SHELLS), help="The shell.")
    return parser


def completion_command(args: argparse.Namespace) -> None:
    """Print the completions for a shell."""
    print(SHELLS[args.shell](), end="")


def parsers() -> dict[str, argparse.ArgumentParser]:
    """Return the parser of every command, by name."""
    from accelerate.commands.accelerate_cli import COMMANDS, build_parser

    return {name: build_parser(name)[1][name] for name in COMMANDS}


def flags(parser: argparse.ArgumentParser) -> Iterator[tuple[list[str], argparse.Action]]:
    """Yield the spellings of each flag, without twins in hyphens, and what it is."""
    for action in parser._actions:
        names = [name for name in action.option_strings if not (name.startswith("--") and "-" in name[2:])]
        if names and action.help != argparse.SUPPRESS:
            yield names, action


def choices(action: argparse.Action) -> list[str]:
    """Return what a flag can be followed by, if that is one of few words; Options have them in their placeholder."""
    if action.choices:
        return [str(one) for one in action.choices]
    shown = action.metavar if isinstance(action.metavar, str) else ""
    return shown[1:-1].split(",") if shown.startswith("{") else []


def bash() -> str:
    """Return the completion of bash."""
    cases = []
    for name, parser in parsers().items():
        known = list(flags(parser))
        words = " ".join(spelling for names, _ in known for spelling in names)
        chosen = "".join(
            f' {"|".join(names)}) choices="{" ".join(choices(action))}" ;;'
            for names, action in known
            if choices(action)
        )
        inner = f" case $previous in{chosen} esac" if chosen else ""
        cases.append(f'        {name}) flags="{words}";{inner} ;;')
    return BASH.format(commands=" ".join(parsers()), cases="\n".join(cases))


def zsh() -> str:
    """Return the completion of zsh, which understands that of bash."""
    return f"autoload -U +X bashcompinit && bashcompinit\n{bash()}"


def fish() -> str:
    """Return the completion of fish, which shows what each flag means."""
    from accelerate.commands.accelerate_cli import COMMANDS

    lines = [
        f"complete -c accelerate -n __fish_use_subcommand -f -a {name} -d {_quoted(command.help)}"
        for name, command in COMMANDS.items()
    ]
    for name, parser in parsers().items():
        for names, action in flags(parser):
            spelt = " ".join(f"-l {one[2:]}" if one.startswith("--") else f"-s {one[1:]}" for one in names)
            offered = f" -x -a {_quoted(' '.join(choices(action)))}" if choices(action) else ""
            about = f" -d {_quoted(action.help)}" if action.help else ""
            lines.append(f'complete -c accelerate -n "__fish_seen_subcommand_from {name}" {spelt}{offered}{about}')
    return "\n".join(lines) + "\n"


def _quoted(text: str) -> str:
    """Return a word for fish."""
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


SHELLS: dict[str, Callable[[], str]] = {"bash": bash, "fish": fish, "zsh": zsh}


def main() -> None:
    """Run `accelerate completion` as a program of its own."""
    run_command(completion_command, completion_command_parser().parse_args())


if __name__ == "__main__":
    main()
