"""The parser that all commands share: twins of flags, what was given, and errors in four parts."""

from __future__ import annotations

import pytest

from accelerate.commands.utils import CustomArgumentParser


def parser() -> CustomArgumentParser:
    """Return a parser with a flag, a flag in a group, and a positional."""
    made = CustomArgumentParser("prog")
    made.add_argument("--num_things", type=int, default=3)
    made.add_argument_group("group").add_argument("--is_it", "-i", action="store_true")
    made.add_argument("name", nargs="?")
    return made


@pytest.mark.parametrize("line", ["--num_things 4 --is_it", "--num-things 4 --is-it", "--num-things=4 -i"])
def test_flags_have_twins(line: str) -> None:
    args = parser().parse_args(line.split())
    assert (args.num_things, args.is_it) == (4, True)


@pytest.mark.parametrize(
    ("line", "given"),
    [("", set()), ("x", {"name"}), ("--num_things 4 x", {"name", "num_things"}), ("-i", {"is_it"})],
)
def test_what_was_given_is_known(line: str, given: set[str]) -> None:
    assert parser().parse_args(line.split()).nondefault == given


def test_prefixes_of_flags_are_not_flags(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        parser().parse_args(["--num_thing", "4"])
    assert ended.value.code == 2
    assert capsys.readouterr().err.splitlines() == [
        "Given: prog --num_thing 4",
        "Why not: unrecognized arguments: --num_thing",
        "Allowed: what `prog --help` lists",
        "What to do: Did you mean '--num_things'?",
    ]


def test_a_wrong_value_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parser().parse_args(["--num_things", "four"])
    said = capsys.readouterr().err
    assert "--num_things/--num-things: invalid int value: 'four'" in said
    assert "correct the command line" in said
