"""The door of the command line."""
# ruff: noqa: RUF009  (option() returns a dataclasses.field)

from __future__ import annotations

import argparse
from dataclasses import dataclass

import pytest

from accelerate.config.cluster import ClusterConfig
from accelerate.config.dynamo import TorchDynamoPlugin
from accelerate.config.enums import DynamoBackend
from accelerate.config.flags import HelpFormatter, add_options, add_twins, explicit, twins
from accelerate.config.option import Boolean, Choice, Integer, Listing, Text, option
from accelerate.config.resolve import Settings

CLASSES = (Settings, ClusterConfig, TorchDynamoPlugin)


@dataclass
class Flags:
    """Flags of every sort."""

    cpu: bool = option(False, kind=Boolean(), flag="--use_cpu", group="Where", help="on the CPU")
    load: bool = option(True, kind=Boolean(switch=False), flag="--load_it", group="Where", help="load 100 % of it")
    steps: int = option(1, kind=Integer(1), flag="--num_steps", aliases=("-n", "--steps"), help="how many")
    names: list[str] = option(factory=list, kind=Listing(Text(), repeat=True), flag="--name", help="a name")
    sizes: list[int] = option(factory=list, kind=Listing(Integer()), flag="--sizes", help="sizes")
    color: str = option("red", kind=Choice(("red", "green")), flag="--color", help="a color")
    no_python: bool = option(False, kind=Boolean(), flag="--no_python", help="without Python")
    hidden: int = option(0, kind=Integer(), help="has no flag")


@pytest.fixture
def parser() -> argparse.ArgumentParser:
    """Return a parser with the flags above."""
    parser = argparse.ArgumentParser(prog="program", allow_abbrev=False, formatter_class=HelpFormatter)
    add_options(parser, Flags)
    return parser


GIVEN = [
    ("", {}),
    ("--use_cpu", {"use_cpu": True}),
    ("--use-cpu", {"use_cpu": True}),
    ("--no_use_cpu", {"use_cpu": False}),
    ("--no-use-cpu", {"use_cpu": False}),
    ("--use_cpu --no_use_cpu", {"use_cpu": False}),
    ("--load_it False", {"load_it": False}),
    ("--load-it=yes", {"load_it": True}),
    ("--num_steps 3", {"num_steps": 3}),
    ("--num-steps 3", {"num_steps": 3}),
    ("-n 3", {"num_steps": 3}),
    ("--steps=3", {"num_steps": 3}),
    ("--num_steps 1", {"num_steps": 1}),
    ("--name a --name b", {"name": ["a", "b"]}),
    ("--sizes 1,2", {"sizes": [1, 2]}),
    ("--color GREEN", {"color": "green"}),
    ("--no_python", {"no_python": True}),
]


@pytest.mark.parametrize(("line", "values"), GIVEN)
def test_only_what_was_given_counts(parser, line, values):
    namespace = parser.parse_args(line.split())
    assert explicit(namespace, Flags) == values
    assert {dest: value for dest, value in vars(namespace).items() if value is not None} == values


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        (
            "--num_steps x",
            "Given: --num_steps x Why not: it isn't a whole number Allowed: a whole number, 1 or more What to do: give",
        ),
        ("--color gren", "Given: --color gren Why not: it isn't one of the choices Allowed: red, green What to do"),
        ("--load_it maybe", "Given: --load_it maybe Why not: it is neither a word for true nor one for false"),
        ("--num 3", "unrecognized arguments: --num 3"),
        ("--no_no_python", "unrecognized arguments: --no_no_python"),
        ("--hidden 3", "unrecognized arguments: --hidden 3"),
    ],
)
def test_what_is_refused(parser, line, complaint, capsys):
    with pytest.raises(SystemExit) as caught:
        parser.parse_args(line.split())
    assert caught.value.code == 2
    said = " ".join(capsys.readouterr().err.split())
    assert complaint in said


def test_help_shows_groups_and_one_spelling(parser):
    text = parser.format_help()
    body = text[text.index("options:") :]
    assert "Where:\n  --use_cpu" in body
    assert "--num_steps N, -n N, --steps N" in " ".join(body.split())
    assert "--num-steps" not in body
    assert "--no_use_cpu" not in body
    assert "load 100 % of it" in body


def test_a_setting_of_two_classes_is_one_flag():
    parser = argparse.ArgumentParser()
    add_options(parser, *CLASSES)
    actions = [action.dest for action in parser._actions if action.dest == "mixed_precision"]
    assert actions == ["mixed_precision"]


def test_flags_of_the_library_mean_what_they_say():
    parser = argparse.ArgumentParser()
    add_options(parser, *CLASSES)
    line = (
        "--cpu --mixed_precision BF16 --num-processes 2 --vm a --vm b --env X=1 --tpu_cluster --dynamo_backend inductor"
    )
    assert explicit(parser.parse_args(line.split()), *CLASSES) == {
        "cpu": True,
        "mixed_precision": "bf16",
        "num_processes": 2,
        "vm": ["a", "b"],
        "env": ["X=1"],
        "tpu_use_cluster": True,
        "dynamo_backend": DynamoBackend.INDUCTOR,
    }
    assert explicit(parser.parse_args(["--no_tpu_cluster"]), *CLASSES) == {"tpu_use_cluster": False}


@pytest.mark.parametrize(
    ("spelling", "both"),
    [("--num_steps", ["--num_steps", "--num-steps"]), ("--color", ["--color"]), ("-n", ["-n"])],
)
def test_twins(spelling, both):
    assert twins(spelling) == both


def test_flags_added_by_hand_get_twins_too():
    parser = argparse.ArgumentParser()
    parser.add_argument("--config_file")
    add_twins(parser)
    assert parser.parse_args(["--config-file", "a"]).config_file == "a"
    assert parser.parse_args(["--config_file", "b"]).config_file == "b"
