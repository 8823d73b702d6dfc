"""The sizes of the axes that processes are laid out on, as scripts import them."""

from __future__ import annotations

from accelerate.config.parallelism import ParallelismConfig

__all__ = ["ParallelismConfig"]
