"""The door of the command line: dataclasses with Options become flags of an argparse parser.

Every flag is stored only when somebody wrote it: None means "not given", so that a value from the config file, or the
default of the library, can take its place. Flags with an underscore have a twin with hyphens; help shows the underscore
spelling only.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from typing import Any

from accelerate.base.messages import message
from accelerate.config.kinds import Boolean, Choice, Listing
from accelerate.config.option import Option, options


def twins(spelling: str) -> list[str]:
    """Return a flag and, where its name has an underscore, the same with hyphens."""
    if spelling.startswith("--") and "_" in spelling:
        return [spelling, spelling.replace("_", "-")]
    return [spelling]


def add_options(parser: argparse.ArgumentParser, *classes: type) -> None:
    """Add a flag for every Option of `classes` that has one, under the help groups that the Options name."""
    for declared in _with_flags(classes).values():
        group = _group(parser, declared.group)
        spellings = [twin for spelling in (declared.flag, *declared.aliases) for twin in twins(str(spelling))]
        if isinstance(declared.kind, Boolean) and declared.kind.switch:
            _add_switch(group, declared, spellings)
        else:
            _add_value(group, declared, spellings)


def explicit(namespace: argparse.Namespace, *classes: type) -> dict[str, Any]:
    """Return what was given on the command line, by `dest`, for the Options of `classes`."""
    given = {dest: getattr(namespace, dest, None) for dest in _with_flags(classes)}
    return {dest: value for dest, value in given.items() if value is not None}


def add_twins(parser: argparse.ArgumentParser) -> None:
    """Give every flag that `parser` has so far its twin with hyphens, for flags that were added by hand."""
    for action in parser._actions:
        for spelling in [twin for written in action.option_strings for twin in twins(written)]:
            if spelling not in parser._option_string_actions:
                action.option_strings = [*action.option_strings, spelling]
                parser._option_string_actions[spelling] = action


class HelpFormatter(argparse.HelpFormatter):
    """Help that lists each flag once, in its underscore spelling."""

    def _format_action_invocation(self, action: argparse.Action) -> str:
        if not action.option_strings:
            return super()._format_action_invocation(action)
        shown = argparse.Action(
            option_strings=_without_twins(action.option_strings),
            dest=action.dest,
            nargs=action.nargs,
            choices=action.choices,
            metavar=action.metavar,
        )
        return super()._format_action_invocation(shown)


def _without_twins(spellings: Any) -> list[str]:
    """Drop the spellings that are the hyphen twin of another."""
    twin_of_others = {twins(spelling)[-1] for spelling in spellings if len(twins(spelling)) > 1}
    return [spelling for spelling in spellings if spelling not in twin_of_others]


def _with_flags(classes: tuple[type, ...]) -> Mapping[str, Option]:
    """Return the Options that have a flag, by `dest`; the same setting declared by two classes appears once."""
    found: dict[str, Option] = {}
    for cls in classes:
        for declared in options(cls).values():
            if declared.flag:
                found.setdefault(declared.dest, declared)
    return found


def _group(parser: argparse.ArgumentParser, title: str) -> argparse._ArgumentGroup:
    """Return the help group called `title`, made if need be."""
    existing = {group.title: group for group in parser._action_groups}
    return existing.get(title) or parser.add_argument_group(title)


def _add_switch(group: argparse._ArgumentGroup, declared: Option, spellings: list[str]) -> None:
    """Add `--flag` for true and, hidden from help, `--no_flag` for false."""
    shared: dict[str, Any] = {"dest": declared.dest, "default": None}
    group.add_argument(*spellings, action="store_const", const=True, help=declared.help, **shared)
    contrary = [f"--no_{spelling.lstrip('-')}" for spelling in spellings if spelling.startswith("--")]
    names = dict.fromkeys(twin for spelling in contrary for twin in twins(spelling))
    if not str(declared.flag).startswith("--no_"):
        group.add_argument(*names, action="store_const", const=False, help=argparse.SUPPRESS, **shared)


def _add_value(group: argparse._ArgumentGroup, declared: Option, spellings: list[str]) -> None:
    """Add `--flag VALUE`, or a flag to give several times."""
    repeat = isinstance(declared.kind, Listing) and declared.kind.repeat
    item = declared.kind.item if isinstance(declared.kind, Listing) and repeat else declared.kind
    group.add_argument(
        *spellings,
        dest=declared.dest,
        default=None,
        action="append" if repeat else "store",
        type=_reader(declared, item.parse),
        metavar=item.metavar,
        help=help_of(declared).replace("%", "%%"),
    )


def help_of(declared: Option) -> str:
    """Return what a flag does, with its choices where its placeholder has no room for them."""
    kind = declared.kind
    return (
        f"{declared.help} One of: {kind.allowed}." if isinstance(kind, Choice) and not kind.is_short else declared.help
    )


def _reader(declared: Option, parse: Callable[[Any], Any]) -> Callable[[str], Any]:
    """Return the function by which argparse reads the value of one flag."""

    def read(text: str) -> Any:
        try:
            return parse(text)
        except ValueError as error:
            kind = declared.kind
            raise argparse.ArgumentTypeError(
                message(given=f"{declared.flag} {text}", why=str(error), allowed=kind.allowed, do=kind.advice(text))
            ) from None

    return read
