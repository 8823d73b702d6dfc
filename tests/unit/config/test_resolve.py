"""The precedence table, exhaustively: every setting, through every combination of doors."""

from __future__ import annotations

import itertools
import os

import pytest

from accelerate.base.environ import reading
from accelerate.config.cluster import ClusterConfig
from accelerate.config.dynamo import TorchDynamoPlugin
from accelerate.config.enums import DynamoBackend
from accelerate.config.env import from_env, to_env
from accelerate.config.option import options
from accelerate.config.resolve import Found, Settings, find, merge, resolve

# Two values, other than the default, for every setting that the environment can carry.
VALUES = {
    "use_cpu": (True, True),
    "mixed_precision": ("fp16", "bf16"),
    "debug": (True, True),
    "enable_cpu_affinity": (True, True),
    "gradient_accumulation_steps": (4, 8),
    "blocking_save": (False, False),
    "downcast_bf16": (True, True),
    "backend": (DynamoBackend.INDUCTOR, DynamoBackend.EAGER),
    "mode": ("reduce-overhead", "max-autotune"),
    "fullgraph": (True, True),
    "dynamic": (True, False),
    "use_regional_compilation": (True, True),
}
DECLARED = {
    declared.name: declared
    for cls in (Settings, ClusterConfig, TorchDynamoPlugin)
    for declared in options(cls).values()
    if declared.env
}
DOORS = list(itertools.product([False, True], repeat=2))


def test_every_setting_with_a_variable_is_in_the_table():
    assert set(VALUES) == set(DECLARED)


@pytest.mark.parametrize(("has_argument", "has_variable"), DOORS)
@pytest.mark.parametrize("name", VALUES)
def test_argument_then_environment_then_default(name, has_argument, has_variable):
    declared = DECLARED[name]
    argument, variable = VALUES[name]
    environ = {declared.env: declared.kind.format(variable)} if has_variable else {}
    if has_argument:
        expected = Found(argument, "argument")
    elif has_variable:
        expected = Found(variable, "environment")
    else:
        expected = Found(declared.default, "default")
    found = find(declared, argument if has_argument else None, environ)
    assert found == expected
    assert type(found.value) is type(expected.value)
    assert resolve(declared, argument if has_argument else None, environ) == expected.value


@pytest.mark.parametrize(
    ("has_flag", "has_file", "has_variable", "has_argument"), list(itertools.product([0, 1], repeat=4))
)
@pytest.mark.parametrize("name", VALUES)
def test_through_a_launch(name, has_flag, has_file, has_variable, has_argument):
    """A launch writes flag, then file, into the environment of the program, where an argument still wins."""
    declared = DECLARED[name]
    first, second = VALUES[name]
    told = merge({declared.dest: first} if has_flag else {}, {declared.dest: second} if has_file else {})
    shell = {declared.env: declared.kind.format(first)} if has_variable else {}
    environ = {**shell, **to_env([declared], {dest: found.value for dest, found in told.items()})}
    value = resolve(declared, second if has_argument else None, environ)
    if has_argument:
        assert value == second
    elif has_flag:
        assert value == first
    elif has_file:
        assert value == second
    else:
        assert value == (first if has_variable else declared.default)


@pytest.mark.parametrize("name", VALUES)
def test_what_goes_through_the_environment_comes_back(name):
    declared = DECLARED[name]
    for value in VALUES[name]:
        assert resolve(declared, None, to_env([declared], {declared.dest: value})) == value


def test_merge_says_where_a_value_came_from_and_leaves_the_rest_unset():
    assert merge({"a": 1, "b": None}, {"a": 2, "b": 3, "c": None}) == {"a": Found(1, "flag"), "b": Found(3, "file")}


@pytest.mark.parametrize("falsy", [False, 0])
def test_a_false_argument_is_an_argument(falsy):
    assert find(DECLARED["debug"], falsy, {"ACCELERATE_DEBUG_MODE": "1"}) == Found(False, "argument")


def test_the_environment_of_the_process_by_default():
    os.environ["ACCELERATE_MIXED_PRECISION"] = "fp16"
    assert resolve(DECLARED["mixed_precision"]) == "fp16"
    with reading({}):
        assert resolve(DECLARED["mixed_precision"]) == "no"


@pytest.mark.parametrize(
    ("argument", "environ", "given"),
    [
        ("fp17", {"ACCELERATE_MIXED_PRECISION": "fp16"}, "argument mixed_precision = 'fp17'"),
        (None, {"ACCELERATE_MIXED_PRECISION": "fp17"}, "environment variable ACCELERATE_MIXED_PRECISION = 'fp17'"),
    ],
)
def test_a_bad_value_names_its_door(argument, environ, given):
    with pytest.raises(ValueError) as caught:
        resolve(DECLARED["mixed_precision"], argument, environ)
    assert str(caught.value).splitlines() == [
        f"Given: {given}",
        "Why not: it isn't one of the choices",
        "Allowed: no, fp16, bf16, fp8",
        "What to do: Did you mean 'fp16'?",
    ]


def test_a_bad_variable_that_loses_is_not_looked_at():
    assert resolve(DECLARED["mixed_precision"], "bf16", {"ACCELERATE_MIXED_PRECISION": "nonsense"}) == "bf16"


def test_settings_of_a_run():
    environ = {"ACCELERATE_USE_CPU": "yes", "ACCELERATE_MIXED_PRECISION": "fp16", "ACCELERATE_DEBUG_MODE": "TRUE"}
    given = {"mixed_precision": "bf16", "debug": False}
    assert Settings(**from_env(Settings, given, environ)) == Settings(
        use_cpu=True,
        mixed_precision="bf16",
        debug=False,
        enable_cpu_affinity=False,
        gradient_accumulation_steps=1,
    )
    with reading({}):
        assert Settings(**from_env(Settings, {})) == Settings()
