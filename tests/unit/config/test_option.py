"""One declaration per setting: what a dataclass field knows about itself."""
# ruff: noqa: RUF009  (option() returns a dataclasses.field)

from __future__ import annotations

from dataclasses import dataclass, fields

import pytest

from accelerate.config.option import Boolean, Choice, Integer, Option, Text, option, option_of, options, shared


@dataclass
class Plugin:
    """A plugin with every sort of field."""

    required: str = option(help="must be given")
    margin: int | None = option(None, fallback=3, kind=Integer(0), help="a margin", flag="--fp8_margin", env="MARGIN")
    names: list[str] = option(factory=list, help="names")
    on: bool = option(False, kind=Boolean(), help="a switch", flag="--on", dest="is_on", yaml="section.on")
    plain: int = 5


@dataclass
class Other:
    """Has a setting of another class."""

    needed: int = shared(Plugin, "margin")
    margin: int = shared(Plugin, "margin", default=7)


def test_fields_are_ordinary_fields():
    plugin = Plugin("a")
    assert plugin == Plugin(required="a", margin=None, names=[], on=False, plain=5)
    assert Plugin("a").names is not plugin.names
    with pytest.raises(TypeError, match="required"):
        Plugin()


def test_options_are_found_by_field_name_in_order():
    assert list(options(Plugin)) == ["required", "margin", "names", "on"]
    assert options(Plugin) is options(Plugin)
    assert [field.name for field in fields(Plugin)][-1] == "plain"


@pytest.mark.parametrize(
    ("name", "dest", "default", "section", "key"),
    [
        ("required", "required", None, None, None),
        ("margin", "fp8_margin", 3, None, None),
        ("on", "is_on", False, "section", "on"),
    ],
)
def test_what_an_option_knows(name, dest, default, section, key):
    declared = option_of(Plugin, name)
    assert (declared.name, declared.dest, declared.default) == (name, dest, default)
    assert (declared.section, declared.key) == (section, key)


def test_a_shared_setting_is_declared_once():
    one, two = option_of(Plugin, "margin"), option_of(Other, "margin")
    assert (one.help, one.flag, one.env, one.kind) == (two.help, two.flag, two.env, two.kind)
    assert Other(needed=1) == Other(1, 7)


def test_a_top_level_key_has_no_section():
    assert Option(help="", yaml="debug").section is None
    assert Option(help="", yaml="debug").key == "debug"


@pytest.mark.parametrize(
    ("kind", "value", "lines"),
    [
        (
            Integer(1),
            "none",
            [
                "Given: --steps = 'none'",
                "Why not: it isn't a whole number",
                "Allowed: a whole number, 1 or more",
                "What to do: give a whole number, 1 or more",
            ],
        ),
        (
            Choice(("fp16", "bf16")),
            "fp17",
            [
                "Given: --steps = 'fp17'",
                "Why not: it isn't one of the choices",
                "Allowed: fp16, bf16",
                "What to do: Did you mean 'fp16'?",
            ],
        ),
        (
            Text(),
            ["a"],
            [
                "Given: --steps = ['a']",
                "Why not: it is a list, not text",
                "Allowed: text",
                "What to do: give text",
            ],
        ),
    ],
)
def test_a_refusal_has_four_parts(kind, value, lines):
    with pytest.raises(ValueError) as caught:
        Option(help="", kind=kind).read(value, "--steps")
    assert str(caught.value).splitlines() == lines
    assert caught.value.__suppress_context__
