"""Kinds of value: what each accepts, what it makes of it, and how it is written back."""

from __future__ import annotations

import pytest

from accelerate.config.enums import DynamoBackend
from accelerate.config.kinds import Boolean, Choice, Integer, Listing, Number, Section, Text

PRECISION = Choice(("no", "fp16", "bf16"))
BACKEND = Choice.of(DynamoBackend, lower=True, meanings={"torhchxla_trace_once": "torchxla_trace_once"})

ACCEPTED = [
    (Text(), "abc", "abc"),
    (Text(), 0, "0"),
    (Integer(), "12", 12),
    (Integer(), 12, 12),
    (Integer(), 12.0, 12),
    (Integer(), "-3", -3),
    (Integer(1, also=(-1,)), "-1", -1),
    (Number(), "0.5", 0.5),
    (Number(), 2, 2.0),
    (Number(0.0), "1e-3", 0.001),
    (Boolean(), True, True),
    (Boolean(), "Yes", True),
    (Boolean(), "off", False),
    (Boolean(), 1, True),
    (Boolean(), " no ", False),
    (PRECISION, "fp16", "fp16"),
    (PRECISION, "BF16", "bf16"),
    (PRECISION, False, "no"),
    (BACKEND, "inductor", DynamoBackend.INDUCTOR),
    (BACKEND, "INDUCTOR", DynamoBackend.INDUCTOR),
    (BACKEND, DynamoBackend.EAGER, DynamoBackend.EAGER),
    (BACKEND, False, DynamoBackend.NO),
    (BACKEND, "TORHCHXLA_TRACE_ONCE", DynamoBackend.TORCHXLA_TRACE_ONCE),
    (Listing(Integer()), "1, 2,3", [1, 2, 3]),
    (Listing(Text()), ["a", "b"], ["a", "b"]),
    (Listing(Boolean(), length=3), "true,false,no", [True, False, False]),
    (Section(), {"a": 1}, {"a": 1}),
]

REFUSED = [
    (Text(), True, "it is a bool, not text"),
    (Text(), ["a"], "it is a list, not text"),
    (Integer(), "1.5", "it isn't a whole number"),
    (Integer(), 1.5, "it isn't a whole number"),
    (Integer(), True, "it isn't a whole number"),
    (Integer(), "two", "it isn't a whole number"),
    (Integer(), None, "it isn't a whole number"),
    (Integer(1), "0", "it is smaller than 1"),
    (Integer(1, also=(-1,)), "-2", "it is smaller than 1"),
    (Number(), "much", "it isn't a number"),
    (Number(), True, "it isn't a number"),
    (Number(0.0), "-0.1", "it is smaller than 0.0"),
    (Number(0.0), "nan", "it is smaller than 0.0"),
    (Boolean(), "maybe", "it is neither a word for true nor one for false"),
    (Boolean(), 2, "it is neither a word for true nor one for false"),
    (PRECISION, "fp8", "it isn't one of the choices"),
    (PRECISION, True, "it isn't one of the choices"),
    (Listing(Integer()), "1,x", "it isn't a whole number"),
    (Listing(Integer()), 3, "it isn't a list"),
    (Listing(Boolean(), length=3), "true,false", "it has 2 values, not 3"),
    (Section(), "text", "it is a str, not a section with keys"),
]


@pytest.mark.parametrize(("kind", "given", "meant"), ACCEPTED)
def test_what_is_accepted(kind, given, meant):
    value = kind.parse(given)
    assert value == meant
    assert type(value) is type(meant)


@pytest.mark.parametrize(("kind", "given", "reason"), REFUSED)
def test_what_is_refused_and_why(kind, given, reason):
    with pytest.raises(ValueError) as caught:
        kind.parse(given)
    assert str(caught.value) == reason


@pytest.mark.parametrize(
    ("kind", "value"), [(kind, meant) for kind, _, meant in ACCEPTED if not isinstance(kind, Section)]
)
def test_what_is_written_reads_back(kind, value):
    assert isinstance(kind.format(value), str)
    assert kind.parse(kind.format(value)) == value


@pytest.mark.parametrize(
    ("kind", "allowed", "metavar"),
    [
        (Text(), "text", "TEXT"),
        (Integer(), "a whole number", "N"),
        (Integer(1, also=(-1,)), "a whole number, 1 or more, or -1", "N"),
        (Number(), "a number", "NUMBER"),
        (Number(0.5), "a number, 0.5 or more", "NUMBER"),
        (PRECISION, "no, fp16, bf16", "{no,fp16,bf16}"),
        (Boolean(), "y/yes/t/true/on/1 or n/no/f/false/off/0, in any case", "{true,false}"),
        (Listing(Integer()), "several values with commas between them, each a whole number", "N,…"),
        (Listing(Text(), repeat=True), "several values with commas between them, each text", "TEXT"),
        (Listing(PRECISION, length=3), "3 values with commas between them, each no, fp16, bf16", "{no,fp16,bf16},…"),
        (Section(), "a section of `key: value` lines", "SECTION"),
    ],
)
def test_how_a_kind_is_described(kind, allowed, metavar):
    assert (kind.allowed, kind.metavar) == (allowed, metavar)


def test_a_choice_advises_the_nearest():
    assert PRECISION.advice("fp17") == "Did you mean 'fp16'?"
    assert Integer(1).advice("x") == "give a whole number, 1 or more"
