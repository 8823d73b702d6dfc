"""What a process knows about its run: who it is, on which device, in which precision, and where its loop stands."""

from __future__ import annotations

from accelerate.state.accelerator_state import AcceleratorState, is_initialized
from accelerate.state.borg import SharedDict, ThreadLocalSharedDict
from accelerate.state.control import do_nothing
from accelerate.state.gradient import GradientState
from accelerate.state.partial import PartialState

__all__ = [
    "AcceleratorState",
    "GradientState",
    "PartialState",
    "SharedDict",
    "ThreadLocalSharedDict",
    "do_nothing",
    "is_initialized",
]
