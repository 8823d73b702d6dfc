"""What `PartialState` and `AcceleratorState` both know: the ranks, the device, and the way to the other processes."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import torch

from accelerate.cluster import process_group
from accelerate.config.enums import DistributedType
from accelerate.state.borg import Borg
from accelerate.state.control import ProcessControl
from accelerate.state.gradient import GradientState
from accelerate.state.runtime import Runtime

if TYPE_CHECKING:
    import torch.distributed as dist

    from accelerate.cluster.base import ClusterEnvironment
    from accelerate.cluster.topology import Topology
    from accelerate.comm.collectives import Collectives
    from accelerate.devices.device import Device


class ProcessState(ProcessControl, Borg):
    """A state of this process among its peers; the two public classes fill it."""

    _known_attrs: ClassVar[list[str]] = [
        "_cpu",
        "_mixed_precision",
        "_shared_state",
        "backend",
        "debug",
        "device",
        "distributed_type",
        "fork_launched",
        "local_process_index",
        "num_processes",
        "process_index",
    ]
    _handles: ClassVar[frozenset[str]] = frozenset({"_collectives", "_device_handle", "_environment"})

    _cpu: bool
    backend: str | None
    device: torch.device
    distributed_type: DistributedType
    fork_launched: bool
    local_process_index: int
    num_processes: int
    process_index: int
    _topology: Topology
    _environment: ClusterEnvironment
    _device_handle: Device
    _collectives: Collectives

    def __repr__(self) -> str:
        if not self.initialized:
            return f"{type(self).__name__} (not initialised)\n"
        backend = f"  Backend: {self.backend}" if self.backend else ""
        return (
            f"Distributed environment: {self.distributed_type}{backend}\n"
            f"Num processes: {self.num_processes}\n"
            f"Process index: {self.process_index}\n"
            f"Local process index: {self.local_process_index}\n"
            f"Device: {self.device}\n"
        )

    @property
    def debug(self) -> bool:
        """Whether collective operations first compare what the ranks are about to do; it can be changed at any time."""
        return self._collectives.debug

    @debug.setter
    def debug(self, wanted: bool) -> None:
        self._collectives.debug = wanted

    def runtime(self) -> Runtime:
        """Return the facts that inner rooms work with."""
        return Runtime(self._topology, self._device_handle, self._collectives, GradientState())

    def destroy_process_group(self, group: dist.ProcessGroup | None = None) -> None:
        """Leave `group`, by default the default one, except in a forked process, whose launcher does that."""
        if group is not None or not self.fork_launched:
            process_group.stop(group)
