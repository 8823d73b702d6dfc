"""Comparing versions, as scripts import it."""

from __future__ import annotations

from accelerate.base.versions import (
    compare_versions,
    is_torch_version,
)

__all__ = [
    "compare_versions",
    "is_torch_version",
]
