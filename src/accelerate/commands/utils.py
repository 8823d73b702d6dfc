"""What every command shares: the parser, and what a person sees when a command fails.

An error of ours is text in four parts and comes without a traceback, with exit code 2; a script that fails has
shown its own traceback already, and gives its exit code. Anything else is a defect of the library and shows where.
"""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from accelerate.base.messages import message, nearest
from accelerate.config.flags import HelpFormatter, twins

#: How the text of `base.messages.message` begins.
IN_FOUR_PARTS = "Given: "
INTERRUPTED = 130
USAGE = 2


class CustomArgumentGroup(argparse._ArgumentGroup):
    """A group of flags, each with its twin in hyphens."""

    def add_argument(self, *args: Any, **kwargs: Any) -> argparse.Action:
        """Add a flag and its twin."""
        return super().add_argument(*with_twins(args), **kwargs)


class CustomArgumentParser(argparse.ArgumentParser):
    """A parser whose flags can be written with underscores or hyphens, and whose errors say what to do.

    After parsing, `nondefault` in the namespace is the set of what was given, by `dest`.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        kwargs.setdefault("formatter_class", HelpFormatter)
        kwargs.setdefault("allow_abbrev", False)
        super().__init__(*args, **kwargs)
        self._given: list[str] = []

    def add_argument(self, *args: Any, **kwargs: Any) -> argparse.Action:
        """Add a flag and its twin."""
        return super().add_argument(*with_twins(args), **kwargs)

    def add_argument_group(self, *args: Any, **kwargs: Any) -> CustomArgumentGroup:
        """Add a group whose flags have twins too."""
        group = CustomArgumentGroup(self, *args, **kwargs)
        self._action_groups.append(group)
        return group

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> tuple[argparse.Namespace, list[str]]:
        """Parse, and note which values were given."""
        self._given = list(sys.argv[1:] if args is None else args)
        parsed, rest = super().parse_known_args(args, namespace)
        if not hasattr(parsed, "nondefault"):
            values = {action.dest: getattr(parsed, action.dest, None) for action in self._actions}
            parsed.nondefault = {name for name, value in values.items() if value not in (None, self.get_default(name))}
        return parsed, rest

    def error(self, text: str) -> NoReturn:
        """Say what is wrong with the command line, and exit with code 2; a value is refused in its own words."""
        _, refused, parts = text.partition(IN_FOUR_PARTS)
        if refused:
            self.exit(USAGE, f"{refused}{parts}\n")
        shown = message(
            given=f"{self.prog} {shlex.join(self._given)}".rstrip(),
            why=text,
            allowed=f"what `{self.prog} --help` lists",
            do=self._advice(text) or "correct the command line",
        )
        self.exit(USAGE, f"{shown}\n")

    def _advice(self, text: str) -> str | None:
        """Return the question whether a known word was meant, for the first word that `text` complains about."""
        known = [*self._option_string_actions, *(name for action in self._actions for name in action.choices or ())]
        wrong = [word.partition("=")[0] for word in self._given if word.partition("=")[0] in text and word not in known]
        found = nearest(wrong[0], known) if wrong else None
        return f"Did you mean {found!r}?" if found else None


def with_twins(spellings: Sequence[str]) -> list[str]:
    """Return the spellings of a flag, and those that have hyphens for underscores."""
    return list(dict.fromkeys(twin for spelling in spellings for twin in twins(spelling)))


def run_command(command: Callable[[argparse.Namespace], Any], args: argparse.Namespace) -> None:
    """Run a command as the command line does: failures become exit codes, and only defects show a traceback."""
    import subprocess

    try:
        command(args)
    except subprocess.CalledProcessError as failed:
        sys.exit(failed.returncode)
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    except BrokenPipeError:
        sys.exit(1)
    except Exception as error:
        if not str(error).startswith(IN_FOUR_PARTS):
            raise
        print(error, file=sys.stderr)
        sys.exit(USAGE)
