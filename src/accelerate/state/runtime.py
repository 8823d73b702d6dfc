"""What the inner rooms are handed instead of calling a singleton.

`PartialState()` and its relatives are called only at the public edge. Everything below receives a :class:`Runtime`:
which process this is, the device it computes on, how it talks to the others, and where the training loop stands.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from accelerate.cluster.topology import Topology
    from accelerate.comm.collectives import Collectives
    from accelerate.devices.device import Device
    from accelerate.state.gradient import GradientState


@dataclass(frozen=True)
class Runtime:
    """The facts of a run, fixed when the state was built."""

    topology: Topology
    device: Device
    collectives: Collectives
    gradient_state: GradientState
