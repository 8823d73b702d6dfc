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


def names_of(module: object) -> list[str]:
    """Return what a module says it exports."""
    return list(getattr(module, "__all__", []))


@pytest.mark.parametrize("path", source.files(), ids=str)
def test_all_names_resolve(path) -> None:
    module = importlib.import_module(source.module_name(path))
    promised = names_of(module)
    assert len(promised) == len(set(promised))
    assert [name for name in promised if not hasattr(module, name)] == []


def test_the_package_lists_what_it_loads_lazily() -> None:
    assert set(names_of(accelerate)) <= set(dir(accelerate))


@pytest.mark.parametrize("name", SUBMODULES)
def test_submodules_are_attributes_of_the_package(name: str) -> None:
    assert getattr(accelerate, name) is importlib.import_module(f"accelerate.{name}")


def test_an_unknown_name_is_an_attribute_error_that_names_it() -> None:
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = accelerate.no_such_name
