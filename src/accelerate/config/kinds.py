"""The kinds of value a setting can have: how each is read from text, written back, and described to a person.

One small class per kind. `parse` takes text (a flag, a variable, an answer) or a value that is typed already (YAML, an
argument), and raises `ValueError` with the bare reason; :class:`~accelerate.config.option.Option` adds the source.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import Any

from accelerate.base.environ import BOOLEAN_WORDS, FALSE_WORDS, TRUE_WORDS
from accelerate.base.messages import did_you_mean

#: How many characters the choices of a flag may take in its placeholder.
FEW_CHOICES = 30


class Kind(ABC):
    """How one kind of value is read, written and described."""

    @abstractmethod
    def parse(self, value: Any) -> Any:
        """Return `value`, text or typed, as this kind; raise ValueError with the reason when it can't be."""

    @property
    @abstractmethod
    def allowed(self) -> str:
        """What may be given, for people."""

    @property
    def metavar(self) -> str:
        """The placeholder in `--help`."""
        return type(self).__name__.upper()

    def format(self, value: Any) -> str:
        """Return `value` as the text that `parse` reads back."""
        return str(value)

    def advice(self, value: Any) -> str:
        """What to do after `value` was refused."""
        return f"give {self.allowed}"


class Text(Kind):
    """Any text; numbers that YAML made of unquoted text become text again."""

    def parse(self, value: Any) -> str:
        if isinstance(value, (str, int, float)) and not isinstance(value, bool):
            return str(value)
        raise ValueError(f"it is a {type(value).__name__}, not text")

    @property
    def allowed(self) -> str:
        return "text"


class Integer(Kind):
    """A whole number, optionally with a smallest value; `also` are values below it that have a meaning of their own."""

    def __init__(self, minimum: int | None = None, also: tuple[int, ...] = ()) -> None:
        self.minimum, self.also = minimum, also

    def parse(self, value: Any) -> int:
        if isinstance(value, bool) or (isinstance(value, float) and not value.is_integer()):
            raise ValueError("it isn't a whole number")
        try:
            number = int(value)
        except (TypeError, ValueError):
            raise ValueError("it isn't a whole number") from None
        if self.minimum is not None and number < self.minimum and number not in self.also:
            raise ValueError(f"it is smaller than {self.minimum}")
        return number

    @property
    def allowed(self) -> str:
        text = "a whole number" if self.minimum is None else f"a whole number, {self.minimum} or more"
        return text + "".join(f", or {value}" for value in self.also)

    @property
    def metavar(self) -> str:
        return "N"


class Number(Kind):
    """A number with a fraction, optionally with a smallest value."""

    def __init__(self, minimum: float | None = None) -> None:
        self.minimum = minimum

    def parse(self, value: Any) -> float:
        try:
            number = float(value)
        except (TypeError, ValueError):
            raise ValueError("it isn't a number") from None
        if isinstance(value, bool):
            raise ValueError("it isn't a number")
        if self.minimum is not None and not number >= self.minimum:
            raise ValueError(f"it is smaller than {self.minimum}")
        return number

    @property
    def allowed(self) -> str:
        return "a number" if self.minimum is None else f"a number, {self.minimum} or more"


class Boolean(Kind):
    """True or false. A `switch` is a flag without a value (`--cpu`, and `--no_cpu` for the contrary)."""

    def __init__(self, switch: bool = True) -> None:
        self.switch = switch

    def parse(self, value: Any) -> bool:
        word = str(value).strip().lower()
        if word in TRUE_WORDS:
            return True
        if word in FALSE_WORDS:
            return False
        raise ValueError("it is neither a word for true nor one for false")

    @property
    def allowed(self) -> str:
        return BOOLEAN_WORDS

    @property
    def metavar(self) -> str:
        return "{true,false}"

    def format(self, value: Any) -> str:
        return "true" if value else "false"


class Choice(Kind):
    """One of `names`, in any case; `make` turns the name into the value, `meanings` are further spellings of names."""

    def __init__(
        self, names: tuple[str, ...], make: Callable[[str], Any] = str, meanings: Mapping[str, str] | None = None
    ) -> None:
        self.names, self.make, self.meanings = names, make, meanings or {}

    @classmethod
    def of(cls, enum: type[Enum], *, lower: bool = False, meanings: Mapping[str, str] | None = None) -> Choice:
        """Return the choice among the members of `enum`, named by their values (in lower case if `lower`)."""
        values = {(str(member.value).lower() if lower else str(member.value)): member for member in enum}
        return cls(tuple(values), values.__getitem__, meanings)

    def parse(self, value: Any) -> Any:
        by_lower = {name.lower(): name for name in self.names}
        word = self._word(value)
        word = self.meanings.get(word, word)
        if word not in by_lower:
            raise ValueError("it isn't one of the choices")
        return self.make(by_lower[word])

    def _word(self, value: Any) -> str:
        """Return `value` in lower case; YAML reads an unquoted `no` as false."""
        if value is False:
            return "no"
        return str(value.value if isinstance(value, Enum) else value).lower()

    @property
    def allowed(self) -> str:
        return ", ".join(self.names)

    @property
    def metavar(self) -> str:
        return f"{{{','.join(self.names)}}}" if self.is_short else "NAME"

    @property
    def is_short(self) -> bool:
        """Whether the choices have room behind the flag, in a terminal of 80 columns."""
        return len(",".join(self.names)) <= FEW_CHOICES

    def format(self, value: Any) -> str:
        return next(name for name in self.names if name.lower() == self._word(value))

    def advice(self, value: Any) -> str:
        return did_you_mean(self._word(value), self.names)


class Listing(Kind):
    """Several values of one kind: a list, or text with commas between them. `repeat`: the flag is given many times."""

    def __init__(self, item: Kind, repeat: bool = False, length: int | None = None) -> None:
        self.item, self.repeat, self.length = item, repeat, length

    def parse(self, value: Any) -> list[Any]:
        parts: Sequence[Any] = [part.strip() for part in value.split(",")] if isinstance(value, str) else value
        if not isinstance(parts, (list, tuple)):
            raise ValueError("it isn't a list")
        if self.length is not None and len(parts) != self.length:
            raise ValueError(f"it has {len(parts)} values, not {self.length}")
        return [self.item.parse(part) for part in parts]

    @property
    def allowed(self) -> str:
        return f"{self.length or 'several'} values with commas between them, each {self.item.allowed}"

    @property
    def metavar(self) -> str:
        return self.item.metavar if self.repeat else f"{self.item.metavar},…"

    def format(self, value: Any) -> str:
        return ",".join(self.item.format(part) for part in value)


class Section(Kind):
    """A nested group of settings: a mapping, kept as it is."""

    def parse(self, value: Any) -> dict[str, Any]:
        if not isinstance(value, Mapping):
            raise ValueError(f"it is a {type(value).__name__}, not a section with keys")
        return dict(value)

    @property
    def allowed(self) -> str:
        return "a section of `key: value` lines"
