"""Versions of what is installed, compared."""

from __future__ import annotations

import importlib.metadata

import pytest
from packaging.version import Version

from accelerate.base import versions


@pytest.mark.parametrize(
    ("left", "operation", "right", "result"),
    [
        (Version("2.1"), ">", "2.0", True),
        (Version("2.1"), ">=", "2.1", True),
        (Version("2.1"), "==", "2.1.0", True),
        (Version("2.1"), "!=", "2.1.0", False),
        (Version("2.1"), "<=", "2.0", False),
        (Version("2.1"), "<", "2.10", True),
        ("packaging", ">=", "1.0", True),
    ],
)
def test_compare_versions(left, operation, right, result):
    assert versions.compare_versions(left, operation, right) is result


def test_an_unknown_operation_is_refused():
    with pytest.raises(ValueError, match=r"`operation` must be one of \['>', '>=', '==', '!=', '<=', '<'\]") as caught:
        versions.compare_versions("torch", "~=", "2.0")
    assert len(str(caught.value).splitlines()) == 4


def test_a_package_that_is_not_installed_raises():
    with pytest.raises(importlib.metadata.PackageNotFoundError):
        versions.compare_versions("no-such-distribution", ">", "1.0")


def test_torch_version_is_that_of_the_metadata_with_its_suffix():
    assert str(versions.torch_version) == importlib.metadata.version("torch")
    assert versions.is_torch_version("==", importlib.metadata.version("torch"))
    assert not versions.is_torch_version("<", "2.6.0")


def test_other_names_are_not_made_up():
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = versions.no_such_name
