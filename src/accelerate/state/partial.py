"""Who this process is: ranks, device, how it reaches the others. Built once, read everywhere, without an `Accelerator`.

Started alone, a script gets the best device there is. Started by torchrun, `accelerate launch` or mpirun, it joins the
process group of the others: on accelerators where there are any, else on the CPU through gloo.
"""

from __future__ import annotations

from typing import Any

import torch

from accelerate.base.environ import parse_flag_from_env
from accelerate.base.messages import warn_once
from accelerate.cluster import process_group
from accelerate.cluster.environments import SingleProcess, detect_environment
from accelerate.cluster.topology import Topology
from accelerate.comm.collectives import Alone, Collectives, TorchCollectives
from accelerate.comm.xla import XlaCollectives
from accelerate.config.enums import DistributedType
from accelerate.config.resolve import setting
from accelerate.devices.affinity import set_numa_affinity
from accelerate.devices.device import Device
from accelerate.devices.select import default_device, select_device
from accelerate.state.borg import SharedDict
from accelerate.state.group import GroupSettings, choose_backend, load_sagemaker_backend
from accelerate.state.process_state import ProcessState


class PartialState(ProcessState):
    """The process among its peers; every instance shows the same facts.

    Args:
        cpu: use the CPU although there is an accelerator; ACCELERATE_USE_CPU asks for the same.
        kwargs: `backend`, `timeout` and `init_method` of the process group.

    Attributes: `device`, `distributed_type`, `num_processes`, `process_index`, `local_process_index`, `backend` (None
    for one process), `debug` (ACCELERATE_DEBUG_MODE) and `fork_launched`.

    Raises:
        ValueError: a backend that can't serve the device, or more processes than devices.
        TypeError: a keyword that is no setting.
    """

    _shared_state = SharedDict()

    def __init__(self, cpu: bool = False, **kwargs: Any) -> None:
        super().__init__()
        settings = GroupSettings.of(kwargs)
        if self.initialized:
            _warn_too_late(self, cpu, settings)
        else:
            self.__dict__.update(_facts(self, setting("use_cpu", cpu or None), settings))

    @property
    def default_device(self) -> torch.device:
        """The device that one process alone would get, without an index."""
        return default_device().torch_device

    def set_device(self) -> None:
        """Make the device of this process torch's current one (again)."""
        self._device_handle.activate()

    def _prepare_backend(
        self, cpu: bool = False, sagemaker_dp: bool = False, backend: str | None = None
    ) -> tuple[str | None, DistributedType]:
        """Decide what kind of run this is: the collective backend, and the label; (None, NO) is one process alone.

        Raises:
            ValueError: `backend` can't serve the device, or isn't that of the group that exists.
        """
        environment = detect_environment()
        topology = environment.topology()
        if topology.world_size == 1:
            return None, DistributedType.NO
        if sagemaker_dp and not cpu:
            backend = load_sagemaker_backend()
        device = select_device(cpu=cpu, topology=topology, backend=backend)
        label = DistributedType(device.spec.label)
        return choose_backend(environment, device, backend), label

    @staticmethod
    def _reset_state() -> None:
        """Empty the state, for tests and for starting over; the process group stays as it is."""
        PartialState._shared_state.clear()


def _facts(state: PartialState, cpu: bool, settings: GroupSettings) -> dict[str, Any]:
    """Return everything that a state holds, once the process group is joined: all of it or, by an error, nothing."""
    backend, label = state._prepare_backend(cpu, settings.sagemaker, settings.backend)
    environment = SingleProcess() if label == DistributedType.NO else detect_environment()
    topology = environment.topology()
    device = select_device(cpu=cpu, topology=topology, backend=backend)
    if topology.world_size > 1 and backend is not None:
        process_group.start(
            environment,
            device=device.torch_device,
            backend=backend,
            timeout=settings.timeout,
            init_method=settings.init_method,
        )
    if setting("enable_cpu_affinity"):
        set_numa_affinity(topology.local_rank)
    return {
        "_cpu": cpu,
        "backend": backend,
        "device": device.torch_device,
        "distributed_type": label,
        "num_processes": topology.world_size,
        "process_index": topology.rank,
        "local_process_index": topology.local_rank,
        "fork_launched": parse_flag_from_env("FORK_LAUNCHED"),
        "_topology": topology,
        "_environment": environment,
        "_device_handle": device,
        "_collectives": _collectives(topology, device, setting("debug")),
    }


def _collectives(topology: Topology, device: Device, debug: bool) -> Collectives:
    """Return how the processes talk to each other."""
    if topology.world_size == 1:
        return Alone(device.torch_device, debug)
    if device.torch_device.type == "xla":
        return XlaCollectives(device.torch_device, debug=debug)
    return TorchCollectives(device.torch_device, debug=debug)


def _warn_too_late(state: PartialState, cpu: bool, settings: GroupSettings) -> None:
    """Say what was asked of a state that exists already and runs otherwise."""
    late = {}
    if cpu and state.device.type != "cpu":
        late["cpu=True"] = f"device {state.device}"
    if settings.backend is not None and state.backend is not None and settings.backend != state.backend:
        late[f"backend={settings.backend!r}"] = f"backend {state.backend!r}"
    for asked, running in late.items():
        warn_once(
            f"PartialState({asked}) has no effect: the state exists already, with {running}. Pass it where the state "
            "is first built, or call PartialState._reset_state() before.",
            stacklevel=3,
        )
