"""Names to things, lazily, and from other distributions."""

from __future__ import annotations

import importlib.metadata

import pytest

from accelerate.base.registry import Registry


@pytest.fixture
def trees() -> Registry[object]:
    """Return a registry with a thing and a promise of one."""
    registry: Registry[object] = Registry("trees")
    registry.register("oak", dict)
    registry.register("counter", "collections:Counter")
    return registry


def test_things_and_promises_are_found(trees):
    from collections import Counter

    assert trees.get("oak") is dict
    assert trees.get("counter") is Counter
    assert "oak" in trees
    assert "elm" not in trees
    assert list(trees) == trees.names() == ["oak", "counter"]


def test_a_later_registration_replaces(trees):
    trees.register("oak", list)
    assert trees.get("oak") is list


def test_an_unknown_name_is_refused_with_the_nearest(trees):
    with pytest.raises(ValueError) as caught:
        trees.get("aok")
    assert str(caught.value).splitlines() == [
        "Given: 'aok' among the trees",
        "Why not: nothing is registered under this name",
        "Allowed: oak, counter",
        "What to do: Did you mean 'oak'?",
    ]


def test_a_broken_promise_raises_its_own_error(trees):
    trees.register("broken", "no_such_module:thing")
    with pytest.raises(ModuleNotFoundError, match="no_such_module"):
        trees.get("broken")


def test_other_distributions_add_but_do_not_replace(trees, monkeypatch):
    def entry_points(*, group):
        assert group == "accelerate.trees"
        return [
            importlib.metadata.EntryPoint("elm", "collections:OrderedDict", group),
            importlib.metadata.EntryPoint("oak", "collections:OrderedDict", group),
        ]

    monkeypatch.setattr(importlib.metadata, "entry_points", entry_points)
    from collections import OrderedDict

    assert trees.get("oak") is dict
    assert trees.get("elm") is OrderedDict
    assert trees.names() == ["oak", "counter", "elm"]
