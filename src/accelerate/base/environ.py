"""The environment, read in one place: names to values, typed, and temporary changes that undo themselves.

Every look-up goes through :func:`current`, so that a block can ask "what if the environment were empty?" with
:func:`reading`, without touching `os.environ` under the feet of other threads.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import NamedTuple

from accelerate.base.messages import message, warn_once


class OldFlag(NamedTuple):
    """The older name of a variable; `contrary` when true there means false here."""

    name: str
    contrary: bool


OLD_FLAGS = {"ACCELERATE_ENABLE_RICH": OldFlag("ACCELERATE_DISABLE_RICH", contrary=True)}

TRUE_WORDS = ("y", "yes", "t", "true", "on", "1")
FALSE_WORDS = ("n", "no", "f", "false", "off", "0")
BOOLEAN_WORDS = f"{'/'.join(TRUE_WORDS)} or {'/'.join(FALSE_WORDS)}, in any case"

_read_from: ContextVar[Mapping[str, str] | None] = ContextVar("accelerate_environment", default=None)


def current() -> Mapping[str, str]:
    """Return the mapping that settings are read from: `os.environ`, unless inside :func:`reading`."""
    chosen = _read_from.get()
    return os.environ if chosen is None else chosen


@contextmanager
def reading(environ: Mapping[str, str]) -> Iterator[None]:
    """Read every setting from `environ` inside the block; `os.environ` itself stays as it is."""
    token = _read_from.set(environ)
    try:
        yield
    finally:
        _read_from.reset(token)


def read(name: str, default: str | None = None) -> str | None:
    """Return the value of variable `name`, or `default`."""
    return current().get(name, default)


def write(name: str, value: object) -> None:
    """Set variable `name` in `os.environ`, for this process and its children."""
    os.environ[name] = str(value)


def str_to_bool(value: str | bool, to_bool: bool = False) -> int | bool:
    """Turn a word such as "yes" or "off" into 1 or 0, or into a bool when `to_bool`.

    Raises:
        ValueError: the word is none of the known ones.
    """
    word = str(value).lower()
    if word in TRUE_WORDS:
        return True if to_bool else 1
    if word in FALSE_WORDS:
        return False if to_bool else 0
    raise ValueError(
        message(
            given=f"invalid truth value {value!r}",
            why="it is neither a word for true nor one for false",
            allowed=BOOLEAN_WORDS,
            do="write `true` or `false`",
        )
    )


def get_int_from_env(env_keys: Iterable[str], default: int) -> int:
    """Return the first non-negative integer found under `env_keys`, or `default`."""
    for key in env_keys:
        text = read(key)
        if text is not None:
            value = _integer(key, text)
            if value >= 0:
                return value
    return default


def _integer(key: str, text: str) -> int:
    """Read `text` as an integer, or say which variable holds something else."""
    try:
        return int(text)
    except ValueError:
        raise ValueError(
            message(
                given=f"environment variable {key}={text!r}",
                why="it isn't an integer",
                allowed="a whole number such as 0 or 8",
                do=f"correct {key}, or unset it",
            )
        ) from None


def parse_flag_from_env(key: str, default: bool = False) -> bool:
    """Return variable `key` as a bool, or `default` when it is unset."""
    text = read(key)
    return _renamed_flag(key, default) if text is None else bool(str_to_bool(text))


def _renamed_flag(key: str, default: bool) -> bool:
    """Return what an older name of `key` says, warning that it is old, or `default`."""
    old = OLD_FLAGS.get(key)
    text = read(old.name) if old else None
    if old is None or text is None:
        return default
    warn_once(f"The variable {old.name} is an old spelling; write {key}=1 (or 0) instead.", FutureWarning, stacklevel=4)
    return bool(str_to_bool(text)) != old.contrary


def parse_choice_from_env(key: str, default: str = "no") -> str:
    """Return variable `key` as text, or `default` when it is unset."""
    return str(read(key, str(default)))


def convert_dict_to_env_variables(current_env: Mapping[str, object]) -> list[str]:
    """Return `KEY=value` lines for a `.deepspeed_env` file, leaving out (with a warning) what would break one.

    A value that is empty or holds a separator, a redirection or a blank can't be written to such a file.
    """
    lines = []
    for key, value in current_env.items():
        text = str(value)
        if text and not any(character in text for character in ";\n<> "):
            lines.append(f"{key}={text}\n")
        else:
            _warn_left_out(key, text)
    return lines


def _warn_left_out(key: str, text: str) -> None:
    """Say that a variable can't be handed on."""
    import logging

    logging.getLogger(__name__).warning(
        "Environment variable %s=%r is not handed on: it is empty or contains one of ; < > blank newline.", key, text
    )


def are_libraries_initialized(*library_names: str) -> list[str]:
    """Return those of `library_names` that are imported already."""
    return [name for name in library_names if name in sys.modules]


@contextmanager
def clear_environment() -> Iterator[None]:
    """Empty `os.environ` inside the block, and put everything back afterwards, also after an error."""
    saved = os.environ.copy()
    os.environ.clear()
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(saved)


@contextmanager
def patch_environment(**kwargs: object) -> Iterator[None]:
    """Set variables (their names in upper case) inside the block, and restore them afterwards, also after an error."""
    wanted = {name.upper(): str(value) for name, value in kwargs.items()}
    saved = {name: os.environ[name] for name in wanted if name in os.environ}
    os.environ.update(wanted)
    try:
        yield
    finally:
        for name in wanted:
            os.environ.pop(name, None)
        os.environ.update(saved)
