"""Making random generators equal on all ranks, by copying the states of rank 0."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from accelerate.base.messages import did_you_mean, message
from accelerate.config.enums import RNGType
from accelerate.state.runtime import Runtime


def synchronize_rng_states(
    runtime: Runtime, rng_types: Iterable[str | RNGType], generator: torch.Generator | None = None
) -> None:
    """Give every rank the random states of rank 0.

    Args:
        runtime: the ranks and the device.
        rng_types: "torch" (the CPU's generator), "generator", or the kind of device of this run.
        generator: what "generator" stands for; without one there is nothing to do for it.

    Raises:
        ValueError: an unknown type, or a kind of device on which this run does not compute.
    """
    for rng_type in map(checked, rng_types):
        if rng_type is RNGType.TORCH:
            torch.set_rng_state(runtime.collectives.broadcast(torch.get_rng_state()))
        elif rng_type is not RNGType.GENERATOR:
            synchronize_device(runtime, rng_type)
        elif generator is not None:
            generator.set_state(runtime.collectives.broadcast(generator.get_state()))


def synchronize_device(runtime: Runtime, rng_type: RNGType) -> None:
    """Give the device of every rank the random state of rank 0's."""
    device = runtime.device
    if rng_type.value != device.spec.name:
        raise ValueError(
            message(
                given=f"rng_types with {rng_type.value!r}",
                why=f"this run computes on {device.spec.name!r} and has no such generator",
                allowed=f"'torch', 'generator' and {device.spec.name!r}",
                do=f"leave {rng_type.value!r} out of rng_types",
            )
        )
    device.set_generator_state(runtime.collectives.broadcast(device.generator_state()))


def checked(rng_type: str | RNGType) -> RNGType:
    """Return the member that a name stands for.

    Raises:
        ValueError: there is no such generator.
    """
    known = [each.value for each in RNGType]
    value = getattr(rng_type, "value", rng_type)
    if value not in known:
        raise ValueError(
            message(
                given=f"rng_types with {rng_type!r}",
                why="there is no such generator",
                allowed=", ".join(map(repr, known)),
                do=did_you_mean(str(value), known),
            )
        )
    return RNGType(value)
