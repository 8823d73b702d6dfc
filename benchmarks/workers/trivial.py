"""A script that does nothing, so that all that is measured is the starting of it."""

from __future__ import annotations

print("done")
