"""How the library speaks to a person: errors in four parts, nearest names, and warnings that come once.

Every refusal says what was given, why it can't be, what is allowed and what to do next; the four arguments of
:func:`message` make it hard to forget one.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable

_warned: set[tuple[str, type[Warning]]] = set()


def message(*, given: str, why: str, allowed: str, do: str) -> str:
    """Return the text of an error: what was given, why it is refused, what is allowed, what to do."""
    return f"Given: {given}\nWhy not: {why}\nAllowed: {allowed}\nWhat to do: {do}"


def nearest(name: str, choices: Iterable[str]) -> str | None:
    """Return the choice that `name` was probably meant to be, or None when nothing is close."""
    import difflib  # only an error needs it

    by_lower = {choice.lower(): choice for choice in choices}
    found = difflib.get_close_matches(name.lower(), by_lower, n=1, cutoff=0.5)
    return by_lower[found[0]] if found else None


def did_you_mean(name: str, choices: Iterable[str]) -> str:
    """Return the sentence that names the nearest choice, or how to find the right one."""
    choices = list(choices)
    found = nearest(name, choices)
    return f"Did you mean {found!r}?" if found else f"Choose one of {', '.join(map(repr, sorted(choices)))}."


def warn_once(text: str, category: type[Warning] = UserWarning, *, stacklevel: int = 2) -> None:
    """Warn with `text` the first time it is said in this process."""
    if (text, category) not in _warned:
        _warned.add((text, category))
        warnings.warn(text, category, stacklevel=stacklevel + 1)


def forget_warnings() -> None:
    """Let every warning be given again; for tests."""
    _warned.clear()
