"""Where a loader that was built without a :class:`Runtime` finds the one of its process."""

from __future__ import annotations

from accelerate.state.partial import PartialState
from accelerate.state.runtime import Runtime


def current_runtime() -> Runtime:
    """Return the runtime of this process, starting the state where nobody has."""
    return PartialState().runtime()
