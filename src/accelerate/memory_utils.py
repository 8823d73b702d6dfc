"""The old place of the memory utilities, which are in `accelerate.utils` now; importing it says so."""

from __future__ import annotations

import warnings

warnings.warn(
    "accelerate.memory_utils is the old place of the memory utilities; import them from accelerate.utils.",
    FutureWarning,
    stacklevel=2,
)
