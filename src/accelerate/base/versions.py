"""Versions of installed packages, compared; what is left of version conditions goes through here."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from accelerate.base.constants import STR_OPERATION_TO_FUNC
from accelerate.base.messages import message

if TYPE_CHECKING:
    from packaging.version import Version


def compare_versions(library_or_version: str | Version, operation: str, requirement_version: str) -> bool:
    """Compare a version, or the installed version of a distribution, with another.

    Args:
        library_or_version: a parsed version, or the name of an installed distribution.
        operation: one of ``> >= == != <= <``.
        requirement_version: the version on the right-hand side.

    Raises:
        ValueError: `operation` is none of these.
        importlib.metadata.PackageNotFoundError: the distribution isn't installed.
    """
    if operation not in STR_OPERATION_TO_FUNC:
        allowed = list(STR_OPERATION_TO_FUNC)
        raise ValueError(
            message(
                given=f"operation {operation!r}",
                why=f"`operation` must be one of {allowed}",
                allowed=" ".join(allowed),
                do="compare with one of these",
            )
        )
    from packaging.version import parse

    found = installed(library_or_version) if isinstance(library_or_version, str) else library_or_version
    return bool(STR_OPERATION_TO_FUNC[operation](found, parse(requirement_version)))


def is_torch_version(operation: str, version: str) -> bool:
    """Compare the installed torch, local suffix such as `+cpu` included, with `version`."""
    return compare_versions("torch", operation, version)


def installed(distribution: str) -> Version:
    """Return the version of an installed distribution, read from its metadata, without importing it."""
    from importlib.metadata import version

    from packaging.version import parse

    return parse(version(distribution))


def __getattr__(name: str) -> Any:
    """Read torch's version when `torch_version` is asked for."""
    if name != "torch_version":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = installed("torch")
    return globals()[name]
