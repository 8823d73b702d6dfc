"""Which device a process computes on: decided once, from what is asked, what is there, and the local rank."""

from __future__ import annotations

from typing import Protocol

import torch

from accelerate.base import environ
from accelerate.base.messages import message, warn_once
from accelerate.devices.device import Device, build_device, device_class, device_for
from accelerate.devices.specs import CPU, SPECS, DeviceSpec, spec_for


class Ranks(Protocol):
    """What selection needs to know about the other processes; a `Topology` has it."""

    @property
    def world_size(self) -> int: ...

    @property
    def local_rank(self) -> int: ...

    @property
    def local_world_size(self) -> int: ...


def default_spec() -> DeviceSpec:
    """Return the row of what is present: the first of `SPECS`, else a backend without a row, else the CPU."""
    for spec in SPECS:
        if spec is not CPU and device_class(spec).is_present(spec):
            return spec
    accelerator = torch.accelerator.current_accelerator()
    if accelerator is not None and torch.accelerator.is_available():
        return spec_for(accelerator.type)
    return CPU


def default_device() -> Device:
    """Return the device of a process that is alone, without an index: whichever is current."""
    return build_device(default_spec())


def select_device(*, cpu: bool, topology: Ranks, distributed: bool | None = None, backend: str | None = None) -> Device:
    """Return the device of this process, made current when it is one of several.

    Args:
        cpu: whether the CPU was asked for.
        topology: the ranks of this process.
        distributed: whether it joins a process group, be it the only member; by default, whether there are several.
        backend: the collective backend that was asked for, if any; gloo lets processes share a device.

    Raises:
        ValueError: more processes were started than there are devices.
    """
    asked = environ.read("ACCELERATE_TORCH_DEVICE")
    if asked:
        return device_for(asked)
    spec = CPU if cpu else default_spec()
    if distributed is None:
        distributed = topology.world_size > 1
    if not distributed:
        return build_device(spec)
    return _for_rank(_multi_process(spec, topology), topology, backend)


def _multi_process(spec: DeviceSpec, topology: Ranks) -> DeviceSpec:
    """Return `spec`, or the CPU's where several processes can't train together on such a device."""
    if spec.multi_process or topology.world_size == 1:
        return spec
    warn_once(
        f"{spec.title} serves one process only, and {topology.world_size} were started: they run on the CPU. "
        "Start one process to use it."
    )
    return CPU


def _for_rank(spec: DeviceSpec, topology: Ranks, backend: str | None) -> Device:
    """Return the device for the local rank, current and checked."""
    count = max(1, build_device(spec).count())
    if spec.exclusive and topology.local_world_size > count and not _may_share(spec, backend):
        raise ValueError(_too_many_processes(spec, topology.local_world_size, count))
    device = build_device(spec, topology.local_rank % count)
    device.activate()
    if topology.world_size > 1:
        device.check_multi_process()
    return device


def _may_share(spec: DeviceSpec, backend: str | None) -> bool:
    """Return whether more processes than visible devices can be right.

    They can when gloo carries the collectives, when each process was shown devices of its own, and when the script has
    formed its group itself and so has arranged the devices.
    """
    if backend is not None and {"gloo", f"{spec.name}:gloo"} & set(backend.lower().split(",")):
        return True
    if spec.visible is not None and environ.read(spec.visible):
        return True
    return torch.distributed.is_available() and torch.distributed.is_initialized()


def _too_many_processes(spec: DeviceSpec, processes: int, count: int) -> str:
    """Return the error for processes that would have to share a device."""
    return message(
        given=f"{processes} processes on this machine, which has {count} device(s) of kind {spec.title}",
        why=f"the {spec.backend or 'collective'} backend needs a device for each process and hangs or fails without",
        allowed=f"at most {count} processes per machine, or any number of them on the CPU",
        do=f"start `--num_processes {count}`, or ask for the CPU with `--cpu` or `Accelerator(cpu=True)`",
    )
