"""The door of the config file: text in and out, and where the default file lies."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from accelerate.base.environ import reading
from accelerate.config.files import (
    cache_dir,
    check_keys,
    default_config_path,
    read_config,
    to_json,
    to_yaml,
    write_config,
)

CONTENT = {"num_processes": 2, "distributed_type": "NO", "fsdp_config": {"b": 1, "a": None}, "debug": False}


def four_parts(error: BaseException) -> list[str]:
    """Return the parts of an error's text, which have to be these four."""
    names, _, parts = zip(*(line.partition(": ") for line in str(error).splitlines()), strict=True)
    assert names == ("Given", "Why not", "Allowed", "What to do")
    return list(parts)


@pytest.mark.parametrize(
    ("variables", "folder"),
    [
        ({"HF_HOME": "/hub"}, "/hub/accelerate"),
        ({"HF_HOME": "/hub", "XDG_CACHE_HOME": "/cache"}, "/hub/accelerate"),
        ({"XDG_CACHE_HOME": "/cache"}, "/cache/huggingface/accelerate"),
        ({"HF_HOME": "", "XDG_CACHE_HOME": ""}, "~/.cache/huggingface/accelerate"),
        ({}, "~/.cache/huggingface/accelerate"),
        ({"HF_HOME": "~/hub"}, "~/hub/accelerate"),
    ],
)
def test_the_folder_of_the_default_file_is_looked_up_when_it_is_needed(variables, folder):
    with reading(variables):
        assert cache_dir() == Path(folder).expanduser()
        assert default_config_path() == Path(folder).expanduser() / "default_config.yaml"


@pytest.mark.parametrize(
    ("there", "chosen"),
    [
        ([], "default_config.yaml"),
        (["default_config.yaml"], "default_config.yaml"),
        (["default_config.json"], "default_config.json"),
        (["default_config.yaml", "default_config.json"], "default_config.yaml"),
    ],
)
def test_a_default_file_in_json_is_found(tmp_path, there, chosen):
    (tmp_path / "accelerate").mkdir()
    for name in there:
        (tmp_path / "accelerate" / name).touch()
    with reading({"HF_HOME": str(tmp_path)}):
        assert default_config_path().name == chosen


@pytest.mark.parametrize(
    ("name", "parse"), [("a.yaml", yaml.safe_load), ("a.yml", yaml.safe_load), ("a.json", json.loads)]
)
def test_the_suffix_chooses_the_format_and_folders_are_made(tmp_path, name, parse):
    path = write_config(tmp_path / "folder" / name, CONTENT)
    assert parse(path.read_text()) == CONTENT
    assert read_config(path) == CONTENT
    assert (path.read_text()[0] == "{") is (name == "a.json")


def test_a_format_can_be_asked_for(tmp_path):
    path = write_config(tmp_path / "a.yaml", CONTENT, to_json)
    assert json.loads(path.read_text()) == CONTENT
    assert read_config(path) == CONTENT


def test_keys_are_sorted():
    assert to_json({"b": 1, "a": 2}) == '{\n  "a": 2,\n  "b": 1\n}\n'
    assert to_yaml({"b": 1, "a": 2}) == "a: 2\nb: 1\n"


BROKEN = [
    ("a.yaml", "", "it is empty"),
    ("a.json", " \n", "it is empty"),
    ("a.yaml", "- a\n- b\n", "its content is a list"),
    ("a.yaml", "just words\n", "its content is a str"),
    ("a.json", "[1]", "its content is a list"),
    ("a.yaml", "a: [1\n", "line 2, column 1"),
    ("a.json", '{"a": 1,}', "line 1 column"),
    ("a.yaml", "a: 1\nb: 2\na: 3\n", "it says a more than once"),
    ("a.json", '{"a": 1, "a": 2}', "it says a more than once"),
    ("a.yaml", "section:\n  a: 1\n  a: 2\n", "it says a more than once"),
]


@pytest.mark.parametrize(("name", "text", "why"), BROKEN)
def test_a_file_that_is_no_config_is_refused(tmp_path, name, text, why):
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(ValueError) as caught:
        read_config(path)
    given, reason, _, advice = four_parts(caught.value)
    assert given == f"config file {path}"
    assert why in reason
    assert "accelerate config" in advice


def test_a_missing_file_is_refused_with_the_way_to_make_one(tmp_path):
    with reading({"HF_HOME": "/hub"}), pytest.raises(FileNotFoundError) as caught:
        read_config(tmp_path / "missing.yaml")
    assert four_parts(caught.value) == [
        f"config file {tmp_path / 'missing.yaml'}",
        "there is no such file",
        "an existing YAML or JSON file",
        "correct the path, or run `accelerate config` to write /hub/accelerate/default_config.yaml",
    ]


def test_yaml_merge_keys_still_work(tmp_path):
    (tmp_path / "a.yaml").write_text("one: &base {a: 1, b: 2}\ntwo:\n  <<: *base\n  b: 3\n")
    assert read_config(tmp_path / "a.yaml")["two"] == {"a": 1, "b": 3}


def test_unknown_keys_are_named_with_the_nearest():
    check_keys(["a", "bb"], ["a", "bb", "c"], "the file")
    with pytest.raises(ValueError) as caught:
        check_keys(["num_proceses", "debug", "zzz"], ["num_processes", "debug"], "the file")
    assert four_parts(caught.value) == [
        "unknown keys ['num_proceses', 'zzz'] in the file",
        "no setting has this name, so it would be ignored",
        "debug, num_processes",
        "'num_proceses': Did you mean 'num_processes'? 'zzz': Choose one of 'debug', 'num_processes'.",
    ]
