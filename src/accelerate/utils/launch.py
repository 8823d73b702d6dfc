"""What launchers do, as scripts import it."""

from __future__ import annotations

from accelerate.launchers.functions import PrepareForLaunch

__all__ = ["PrepareForLaunch"]
