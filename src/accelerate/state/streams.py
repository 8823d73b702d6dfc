"""Streams of random numbers that are to run alike on every process."""

from __future__ import annotations

from typing import TYPE_CHECKING

from accelerate.devices.random import set_stream_state, stream_state

if TYPE_CHECKING:
    import torch

    from accelerate.comm.collectives import Collectives
    from accelerate.devices.device import Device


def synchronize_stream(
    kind: str, *, collectives: Collectives, device: Device, generator: torch.Generator | None = None
) -> None:
    """Put a stream of every process where that of the first one is.

    Args:
        kind: "torch", "generator" (the one passed), or the type of `device`.
        collectives: the processes; all of them make this call.
        device: the device of this process.
        generator: what "generator" stands for.

    Raises:
        ValueError: this process has no such stream.
    """
    state = collectives.broadcast(stream_state(kind, device=device, generator=generator))
    set_stream_state(kind, state, device=device, generator=generator)
