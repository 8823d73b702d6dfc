"""The door of the environment: variables fill what an argument left open, and settings become variables.

`launch` writes with :func:`to_env`, the library in the started process reads with :func:`from_env`; both go by the
Option's kind, so that what one writes the other reads.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from accelerate.config.option import Option, options
from accelerate.config.resolve import resolve


def from_env(cls: type, values: Mapping[str, Any], environ: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Return every Option of `cls`: from `values` (by field name, None is open), the environment, or the default."""
    return {name: resolve(declared, values.get(name), environ) for name, declared in options(cls).items()}


def fill(instance: Any) -> None:
    """Fill the Option fields of a dataclass instance that are None, and check the others; for `__post_init__`."""
    for name, value in from_env(type(instance), vars(instance)).items():
        setattr(instance, name, value)


def to_env(declared: Iterable[Option], values: Mapping[str, Any]) -> dict[str, str]:
    """Return the variables that hand `values` (by `dest`) on; None, and settings without a variable, are left out."""
    return {
        one.env: one.kind.format(values[one.dest])
        for one in declared
        if one.env is not None and values.get(one.dest) is not None
    }
