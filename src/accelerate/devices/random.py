"""Random states on one process: Python's, numpy's, torch's and the device's, seeded, saved and restored together.

Nothing here talks to other processes; what is shared between them is built on top, where they can be reached.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

from accelerate.base.messages import message
from accelerate.devices.device import Device

#: The names under which checkpoints keep the states that every process has.
PYTHON_KEY = "random_state"
NUMPY_KEY = "numpy_random_seed"
TORCH_KEY = "torch_manual_seed"


def seed_everything(seed: int, *, device: Device, deterministic: bool = False) -> None:
    """Seed Python's `random`, numpy, torch and `device`.

    Args:
        seed: from 0 to 2**32 - 1, which is as far as numpy goes.
        device: its generators are seeded too, on every visible device of its kind.
        deterministic: whether torch has to use deterministic algorithms from now on, and to fail where it has none.
    """
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)
    device.seed(seed)
    if deterministic:
        torch.use_deterministic_algorithms(True)


def rng_state(device: Device) -> dict[str, Any]:
    """Return every random state of this process, under the names that checkpoints use."""
    states: dict[str, Any] = {
        PYTHON_KEY: random.getstate(),
        NUMPY_KEY: np.random.get_state(),
        TORCH_KEY: torch.get_rng_state(),
    }
    if device.spec.rng_key is not None:
        states[device.spec.rng_key] = device.rng_state()
    return states


def set_rng_state(states: Mapping[str, Any], *, device: Device) -> list[str]:
    """Restore what :func:`rng_state` returned, as far as `states` has it.

    Returns:
        the names of the states that this run needs and `states` lacks, as after a change of device; the caller tells.

    Raises:
        ValueError: a state is there but can't be restored, for instance one for another number of devices.
    """
    restore: dict[str, Callable[[Any], None]] = {
        PYTHON_KEY: random.setstate,
        NUMPY_KEY: np.random.set_state,
        TORCH_KEY: torch.set_rng_state,
    }
    if device.spec.rng_key is not None:
        restore[device.spec.rng_key] = device.set_rng_state
    for key, restore_one in restore.items():
        if key in states:
            _restore(key, states[key], restore_one)
    return [key for key in restore if key not in states]


def _restore(key: str, state: Any, restore_one: Callable[[Any], None]) -> None:
    """Restore one state, and name it if that fails."""
    try:
        restore_one(state)
    except (TypeError, ValueError, RuntimeError, IndexError) as error:
        raise ValueError(
            message(
                given=f"random state {key!r} of type {type(state).__name__}",
                why=f"it can't be restored: {error}",
                allowed="a state that was saved on the same kind and number of devices, by the same versions",
                do="resume where the state was saved, or leave random states out and seed anew",
            )
        ) from error
