"""Variables read as what they mean, and changes of the environment that undo themselves."""

from __future__ import annotations

import asyncio
import os
import threading

import pytest

from accelerate.base import environ, purge

TRUE = ["y", "yes", "t", "true", "on", "1", "True", "YES"]
FALSE = ["n", "no", "f", "false", "off", "0", "False", "NO"]


@pytest.mark.parametrize(("word", "meaning"), [(word, 1) for word in TRUE] + [(word, 0) for word in FALSE])
def test_str_to_bool(word, meaning):
    assert environ.str_to_bool(word) == meaning
    assert type(environ.str_to_bool(word)) is int
    assert environ.str_to_bool(word, to_bool=True) is bool(meaning)


@pytest.mark.parametrize("value", [True, False])
def test_str_to_bool_takes_a_bool_as_it_is(value):
    assert environ.str_to_bool(value, to_bool=True) is value


@pytest.mark.parametrize("word", ["2", "", "maybe", " true "])
def test_str_to_bool_refuses_other_words(word):
    with pytest.raises(ValueError) as caught:
        environ.str_to_bool(word)
    first, *others = str(caught.value).splitlines()
    assert first == f"Given: invalid truth value {word!r}"
    assert [line.split(":")[0] for line in others] == ["Why not", "Allowed", "What to do"]


@pytest.mark.parametrize(
    ("variables", "result"),
    [
        ({}, 7),
        ({"SECOND": "5"}, 5),
        ({"FIRST": "0", "SECOND": "5"}, 0),
        ({"FIRST": "-1", "SECOND": "5"}, 5),
        ({"FIRST": "-1"}, 7),
    ],
)
def test_get_int_from_env(variables, result):
    with environ.reading(variables):
        assert environ.get_int_from_env(["FIRST", "SECOND"], 7) == result


def test_get_int_from_env_names_the_variable_that_is_no_number():
    with environ.reading({"FIRST": "four"}), pytest.raises(ValueError, match="FIRST='four'"):
        environ.get_int_from_env(["FIRST"], 7)


@pytest.mark.parametrize(
    ("variables", "default", "result"),
    [({}, False, False), ({}, True, True), ({"FLAG": "TRUE"}, False, True), ({"FLAG": "off"}, True, False)],
)
def test_parse_flag_from_env(variables, default, result):
    with environ.reading(variables):
        assert environ.parse_flag_from_env("FLAG", default) is result


def test_parse_flag_from_env_refuses_other_words():
    with environ.reading({"FLAG": "maybe"}), pytest.raises(ValueError, match="invalid truth value 'maybe'"):
        environ.parse_flag_from_env("FLAG")


def test_parse_choice_from_env():
    with environ.reading({"CHOICE": "fp16"}):
        assert environ.parse_choice_from_env("CHOICE") == "fp16"
        assert environ.parse_choice_from_env("OTHER") == "no"
        assert environ.parse_choice_from_env("OTHER", "x") == "x"


@pytest.mark.parametrize(("old", "meaning"), [("1", False), ("true", False), ("0", True)])
def test_the_old_name_of_a_flag_is_honoured_and_named(old, meaning):
    with environ.reading({"ACCELERATE_DISABLE_RICH": old}):
        with pytest.warns(FutureWarning, match="ACCELERATE_DISABLE_RICH .* ACCELERATE_ENABLE_RICH=1"):
            assert environ.parse_flag_from_env("ACCELERATE_ENABLE_RICH") is meaning


def test_the_new_name_of_a_flag_wins_silently():
    with environ.reading({"ACCELERATE_DISABLE_RICH": "1", "ACCELERATE_ENABLE_RICH": "1"}):
        assert environ.parse_flag_from_env("ACCELERATE_ENABLE_RICH") is True


def test_read_and_write():
    assert environ.read("SOME_NAME") is None
    assert environ.read("SOME_NAME", "default") == "default"
    environ.write("SOME_NAME", 3)
    assert os.environ["SOME_NAME"] == environ.read("SOME_NAME") == "3"


def test_reading_hides_the_environment_from_one_thread_only():
    os.environ["SEEN"] = "yes"
    seen = []
    with environ.reading({}):
        other = threading.Thread(target=lambda: seen.append(environ.read("SEEN")))
        other.start()
        other.join(10)
        seen.append(environ.read("SEEN"))
    assert [*seen, environ.read("SEEN"), os.environ["SEEN"]] == ["yes", None, "yes", "yes"]


def test_convert_dict_leaves_out_what_would_break_the_file(caplog):
    lines = environ.convert_dict_to_env_variables(
        {
            "GOOD": "value",
            "NUMBER": 1,
            "EMPTY": "",
            "SEMICOLON": "a;b",
            "BLANK": "a b",
            "REDIRECT": "a>b",
            "LINE": "a\n",
        }
    )
    assert lines == ["GOOD=value\n", "NUMBER=1\n"]
    assert [name for name in ("EMPTY", "SEMICOLON", "BLANK", "REDIRECT", "LINE") if name not in caplog.text] == []


def test_are_libraries_initialized():
    assert environ.are_libraries_initialized("os", "no_such_library", "sys") == ["os", "sys"]


class Stop(Exception):
    """Ends a block early."""


@pytest.mark.parametrize("fails", [False, True])
def test_patch_environment(fails):
    os.environ["BEFORE"] = "old"
    try:
        with environ.patch_environment(before="new", added=2):
            assert (os.environ["BEFORE"], os.environ["ADDED"]) == ("new", "2")
            os.environ["BEFORE"] = "changed inside"
            if fails:
                raise Stop
    except Stop:
        pass
    assert os.environ["BEFORE"] == "old"
    assert "ADDED" not in os.environ


@pytest.mark.parametrize("fails", [False, True])
def test_clear_environment(fails):
    before = dict(os.environ)
    try:
        with environ.clear_environment():
            assert dict(os.environ) == {}
            os.environ["ADDED"] = "1"
            if fails:
                raise Stop
    except Stop:
        pass
    assert dict(os.environ) == before


def leak(name: str) -> int:
    """Leave a variable behind, change one, and remove one."""
    os.environ[f"ACCELERATE_{name}"] = "1"
    os.environ["ACCELERATE_BEFORE"] = "changed"
    os.environ["OTHER"] = "1"
    return 5


@pytest.fixture
def before() -> None:
    """Set a variable that a purge must keep."""
    os.environ["ACCELERATE_BEFORE"] = "old"


def left_behind() -> list[str]:
    """Return the ACCELERATE_* variables that there are."""
    return sorted(name for name in os.environ if name.startswith("ACCELERATE_"))


@pytest.mark.usefixtures("before")
def test_purge_undoes_what_a_function_leaves():
    assert purge.purge_accelerate_environment(leak)("LEFT") == 5
    assert left_behind() == ["ACCELERATE_BEFORE"]
    assert (os.environ["ACCELERATE_BEFORE"], os.environ["OTHER"]) == ("old", "1")
    assert purge.purge_accelerate_environment(leak).__name__ == "leak"


@pytest.mark.usefixtures("before")
def test_purge_undoes_what_generators_and_coroutines_leave():
    @purge.purge_accelerate_environment
    def generate():
        yield leak("GENERATOR")

    @purge.purge_accelerate_environment
    async def wait():
        return leak("COROUTINE")

    assert (list(generate()), asyncio.run(wait())) == ([5], 5)
    assert left_behind() == ["ACCELERATE_BEFORE"]


@purge.purge_accelerate_environment
class Suite:
    """Stands for a test class; its own tests, and those of its children, are purged."""

    def test_plain(self) -> int:
        return leak("PLAIN")

    @staticmethod
    def test_static() -> int:
        return leak("STATIC")

    @classmethod
    def test_class(cls) -> int:
        return leak("CLASS")

    def helper(self) -> int:
        return leak("HELPER")


class Child(Suite):
    """Inherits the tests and adds one."""

    def test_more(self) -> int:
        return leak("MORE")


@pytest.mark.usefixtures("before")
@pytest.mark.parametrize("suite", [Suite, Child])
def test_purge_of_a_class_is_about_its_tests(suite):
    one = suite()
    assert [one.test_plain(), suite.test_static(), suite.test_class()] == [5, 5, 5]
    if suite is Child:
        one.test_more()
    assert left_behind() == ["ACCELERATE_BEFORE"]
    one.helper()
    assert left_behind() == ["ACCELERATE_BEFORE", "ACCELERATE_HELPER"]
