"""The door of the environment."""
# ruff: noqa: RUF009  (option() returns a dataclasses.field)

from __future__ import annotations

from dataclasses import dataclass

import pytest

from accelerate.base.environ import reading
from accelerate.config.env import fill, from_env, to_env
from accelerate.config.option import Boolean, Choice, Integer, Listing, Text, option, options


@dataclass
class Plugin:
    """Fields that other doors may fill."""

    steps: int | None = option(None, fallback=2, kind=Integer(1), env="P_STEPS", help="")
    on: bool | None = option(None, fallback=False, kind=Boolean(), env="P_ON", help="")
    mode: str | None = option(None, kind=Choice(("slow", "fast")), env="P_MODE", help="")
    names: list[str] | None = option(None, kind=Listing(Text()), env="P_NAMES", help="")
    inner: str = option("x", kind=Text(), help="has no variable")
    plain: int = 0


@dataclass
class Filled(Plugin):
    """Fills itself."""

    def __post_init__(self) -> None:
        fill(self)


VARIABLES = {"P_STEPS": "7", "P_ON": "True", "P_MODE": "FAST", "P_NAMES": "a,b"}
DEFAULTS = {"steps": 2, "on": False, "mode": None, "names": None, "inner": "x"}


@pytest.mark.parametrize(
    ("values", "variables", "result"),
    [
        ({}, {}, DEFAULTS),
        ({}, VARIABLES, {"steps": 7, "on": True, "mode": "fast", "names": ["a", "b"], "inner": "x"}),
        (
            {"steps": 3, "on": False, "names": ["c"], "inner": "y"},
            VARIABLES,
            {"steps": 3, "on": False, "mode": "fast", "names": ["c"], "inner": "y"},
        ),
        ({"steps": None}, {"P_STEPS": "7"}, {**DEFAULTS, "steps": 7}),
    ],
)
def test_from_env(values, variables, result):
    assert from_env(Plugin, values, variables) == result
    with reading(variables):
        assert from_env(Plugin, values) == result


def test_fill_leaves_plain_fields_alone():
    with reading(VARIABLES):
        assert Filled(steps=3, plain=9) == Filled(3, True, "fast", ["a", "b"], "x", 9)


@pytest.mark.parametrize("bad", [{"steps": 0}, {"mode": "medium"}, {"on": "maybe"}])
def test_fill_checks_arguments(bad):
    with pytest.raises(ValueError, match=rf"^Given: argument {next(iter(bad))} = "):
        Filled(**bad)


def test_to_env_leaves_out_what_is_unset_or_has_no_variable():
    values = {"steps": 7, "on": False, "mode": None, "names": ["a", "b"], "inner": "y", "unknown": 1}
    written = to_env(options(Plugin).values(), values)
    assert written == {"P_STEPS": "7", "P_ON": "false", "P_NAMES": "a,b"}
    assert from_env(Plugin, {}, written) == {**DEFAULTS, "steps": 7, "on": False, "names": ["a", "b"]}
