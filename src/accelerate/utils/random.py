"""Seeds and random states of the whole run: the same on all processes, or different on each, as asked."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from accelerate.base.messages import message
from accelerate.config.enums import RNGType
from accelerate.data_loader import rng
from accelerate.devices.random import seed_everything
from accelerate.devices.select import default_device
from accelerate.state import PartialState


def set_seed(seed: int, device_specific: bool = False, deterministic: bool = False) -> None:
    """Seed Python's `random`, numpy, torch and the device.

    Args:
        seed: from 0 to 2**32 - 1.
        device_specific: add the process index, so that processes draw different numbers.
        deterministic: make torch use deterministic algorithms from now on, and fail where it has none.

    Raises:
        ValueError: `device_specific` before the process knows its index.
    """
    known = bool(PartialState._shared_state)
    if device_specific:
        if not known:
            raise ValueError(_no_index_yet())
        seed += PartialState().process_index
    device = PartialState()._device_handle if known else default_device()
    seed_everything(seed, device=device, deterministic=deterministic)


def synchronize_rng_state(rng_type: RNGType | str | None = None, generator: torch.Generator | None = None) -> None:
    """Put one stream of random numbers of every process where that of the main process is.

    Args:
        rng_type: which stream: "torch", "generator" (the default), or the type of the device such as "cuda".
        generator: the generator that "generator" stands for.

    Raises:
        ValueError: this process has no such stream.
    """
    synchronize_rng_states([RNGType.GENERATOR if rng_type is None else rng_type], generator)


def synchronize_rng_states(rng_types: Iterable[RNGType | str], generator: torch.Generator | None = None) -> None:
    """Put several streams of random numbers of every process where those of the main process are."""
    rng.synchronize_rng_states(PartialState().runtime(), rng_types, generator)


def _no_index_yet() -> str:
    """Return the error for a seed per process in a process that doesn't know which it is."""
    return message(
        given="set_seed(..., device_specific=True) before any Accelerator",
        why="the process index is added to the seed, and it isn't known yet",
        allowed="a seed per process once a PartialState or an Accelerator exists",
        do="build the Accelerator first, or leave device_specific out for the same seed everywhere",
    )
