"""Every name that a module promises is really there, and a promise costs nothing until it is used."""

from __future__ import annotations

import importlib

import pytest

import accelerate
from tests.architecture import source

SUBMODULES = [
    "accelerator",
    "commands",
    "data_loader",
    "launchers",
    "logging",
    "optimizer",
    "scheduler",
    "state",
    "utils",
]

# The one warns that it is the old place of something, the other refuses unless the environment asks for it.
ONLY_ON_REQUEST = {"accelerate.memory_utils", "accelerate.utils.rich"}


def names_of(module: object) -> list[str]:
    """Return what a module says it exports."""
    return list(getattr(module, "__all__", []))


def test_all_promised_names_resolve() -> None:
    names = [source.module_name(path) for path in source.files()]
    modules = {name: importlib.import_module(name) for name in names if name not in ONLY_ON_REQUEST}
    missing = {
        name: [each for each in names_of(module) if not hasattr(module, each)] for name, module in modules.items()
    }
    assert {name: each for name, each in missing.items() if each} == {}
    assert [name for name, module in modules.items() if len(set(names_of(module))) != len(names_of(module))] == []


def test_the_package_lists_what_it_loads_lazily() -> None:
    assert set(names_of(accelerate)) <= set(dir(accelerate))


@pytest.mark.parametrize("name", SUBMODULES)
def test_submodules_are_attributes_of_the_package(name: str) -> None:
    assert getattr(accelerate, name) is importlib.import_module(f"accelerate.{name}")


def test_an_unknown_name_is_an_attribute_error_that_names_it() -> None:
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = accelerate.no_such_name
