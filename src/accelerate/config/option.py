"""One declaration per setting: a dataclass field with an :class:`Option` beside it.

The flag, the YAML key, the environment variable, the question of the questionnaire, the `--help` text and the table in
the documentation are all read off the Option, so that a new setting is one line::

    @dataclass
    class Plugin:
        margin: int | None = option(None, fallback=0, kind=Integer(0), help="scaling margin", flag="--fp8_margin")
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass
from typing import Any

from accelerate.base.messages import message
from accelerate.config.kinds import Boolean, Choice, Integer, Kind, Listing, Number, Section, Text

__all__ = [
    "Boolean",
    "Choice",
    "Integer",
    "Kind",
    "Listing",
    "Number",
    "Option",
    "Section",
    "Text",
    "option",
    "option_of",
    "options",
    "shared",
]

Predicate = Callable[[Mapping[str, Any]], bool]


@dataclass(frozen=True)
class Option:
    """What every door needs to know about one setting.

    Args:
        help: what it does, for `--help` and the documentation.
        kind: how its value is read and written.
        default: the value when no door says anything.
        flag: the launch flag, underscore spelling; a twin with hyphens is accepted too.
        aliases: further spellings of the flag.
        yaml: key in the config file; `section.key` inside a section.
        env: variable that hands the value to the library.
        group: heading in `--help`.
        ask: the question; None when the questionnaire doesn't ask.
        when: whether to ask, given the answers so far (by `dest`).
        suggest: what the questionnaire offers, when that isn't the default.
        dest: name in the parsed arguments; by default the flag's.
        name: the dataclass field; filled in by :func:`options`.
    """

    help: str
    kind: Kind = Text()  # noqa: RUF009  (frozen and without state)
    default: Any = None
    flag: str | None = None
    aliases: tuple[str, ...] = ()
    yaml: str | None = None
    env: str | None = None
    group: str = "Options"
    ask: str | None = None
    when: Predicate | None = None
    suggest: Any = None
    dest: str = ""
    name: str = ""

    @property
    def section(self) -> str | None:
        """The section of the config file that holds this setting, or None at the top level."""
        return self.yaml.rpartition(".")[0] or None if self.yaml else None

    @property
    def key(self) -> str | None:
        """The key in the config file, without its section."""
        return self.yaml.rpartition(".")[2] if self.yaml else None

    def read(self, value: Any, source: str) -> Any:
        """Return `value` as this setting's kind.

        Raises:
            ValueError: it can't be one; `source` says where it was given.
        """
        try:
            return self.kind.parse(value)
        except ValueError as error:
            raise ValueError(
                message(
                    given=f"{source} = {value!r}",
                    why=str(error),
                    allowed=self.kind.allowed,
                    do=self.kind.advice(value),
                )
            ) from None


def option(
    default: Any = MISSING, *, factory: Callable[[], Any] | None = None, fallback: Any = None, **facts: Any
) -> Any:
    """Return a dataclass field that carries an :class:`Option`.

    Args:
        default: the field's default; without it the field is required. None means "ask the other doors".
        factory: makes the default instead, for lists and dicts.
        fallback: the value when no door says anything; `default` when that isn't None.
        facts: the other arguments of `Option`.
    """
    final = default if default is not None and default is not MISSING else fallback
    metadata = {"option": Option(default=final, **facts)}
    if factory is not None:
        return dataclasses.field(default_factory=factory, metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


def shared(cls: type, name: str, default: Any = MISSING) -> Any:
    """Return a dataclass field that is the same setting as field `name` of `cls`, declared there once."""
    return dataclasses.field(default=default, metadata={"option": option_of(cls, name)})


_options: dict[type, dict[str, Option]] = {}


def options(cls: type) -> dict[str, Option]:
    """Return the Options of dataclass `cls`, by field name, in their order."""
    if cls not in _options:
        _options[cls] = _collect(cls)
    return _options[cls]


def _collect(cls: type) -> dict[str, Option]:
    """Read the Options off the fields of `cls`."""
    found = {}
    for field in dataclasses.fields(cls):
        declared: Option | None = field.metadata.get("option")
        if declared is not None:
            flag_name = declared.flag.lstrip("-") if declared.flag else field.name
            found[field.name] = dataclasses.replace(declared, name=field.name, dest=declared.dest or flag_name)
    return found


def option_of(cls: type, name: str) -> Option:
    """Return the Option of field `name` of dataclass `cls`."""
    return options(cls)[name]
