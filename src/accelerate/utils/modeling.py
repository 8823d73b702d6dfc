"""Mixed precision as objects, for code that brings its own loop."""

from __future__ import annotations

from accelerate.logging import get_logger
from accelerate.precision.public import get_grad_scaler, get_mixed_precision_context_manager

__all__ = ["get_grad_scaler", "get_mixed_precision_context_manager", "logger"]

logger = get_logger(__name__)
