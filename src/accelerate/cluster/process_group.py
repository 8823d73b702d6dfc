"""The default process group: which backend serves the device, joining the group, and leaving it.

A group that exists already is used as it is; a group is only ever started here.
"""

from __future__ import annotations

import atexit
import os
import sys
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from accelerate.base.messages import did_you_mean, message, warn_once
from accelerate.base.ports import who_holds
from accelerate.cluster.threads import share_cores

if TYPE_CHECKING:
    from accelerate.cluster.base import ClusterEnvironment


def resolve_backend(
    requested: str | None,
    *,
    device: torch.device,
    preferred: str | None = None,
    with_cpu: bool = False,
    under_mpi: bool = False,
) -> str:
    """Return the backend that carries collectives on `device`.

    Args:
        requested: what the user asked for: a name, or "cuda:nccl,cpu:gloo" and the like; None to choose.
        device: where the tensors are.
        preferred: the backend made for that kind of device; None to ask torch which one is registered for it.
        with_cpu: whether tensors in host memory are communicated too, as with parameters offloaded to it.
        under_mpi: whether mpirun started the processes, so that torch's own MPI backend (if it was built) works.

    Raises:
        ValueError: the requested backend doesn't exist or can't serve the device, or none is known for it.
    """
    if requested:
        _check_serves(requested.lower(), device, preferred)
        return requested.lower()
    if device.type == "cpu" and under_mpi and dist.is_mpi_available():
        return "mpi"
    chosen = _available(preferred or _registered_for(device), device)
    if with_cpu and device.type != "cpu" and chosen != "gloo":
        return f"{device.type}:{chosen},cpu:gloo"
    return chosen


def start(
    environment: ClusterEnvironment,
    *,
    device: torch.device,
    backend: str,
    timeout: timedelta | None = None,
    init_method: str | None = None,
) -> None:
    """Join the default process group, unless this process is in it already or its surroundings need none.

    Args:
        environment: what started the processes; it knows the ranks and where they meet.
        device: the device of this process.
        backend: from :func:`resolve_backend`.
        timeout: how long a collective may take; None for torch's default.
        init_method: another way to meet than `env://`, such as `file:///shared/path`.
    """
    if dist.is_initialized():
        _check_running(device)
        return
    if not environment.process_group:
        return
    environment.export()
    if device.type == "cpu":
        share_cores(environment.topology())
    try:
        dist.init_process_group(backend=backend, **_options(environment, device, backend, timeout, init_method))
    except dist.DistNetworkError as error:
        if "EADDRINUSE" in str(error):
            raise RuntimeError(_port_taken(environment.main_port())) from error
        raise
    atexit.register(_leave_at_exit)


def stop(group: dist.ProcessGroup | None = None) -> None:
    """Leave `group`, by default the default group and every other; nothing happens when there is none."""
    if dist.is_available() and dist.is_initialized():
        dist.destroy_process_group(group)


def _leave_at_exit() -> None:
    """Leave the group that a script did not leave: what its threads still hold would abort the interpreter's end.

    After an uncaught exception the group stays, since leaving would wait for collectives that never complete.
    """
    if getattr(sys, "last_value", None) is None:
        stop()


def backends_by_device(backend: str) -> dict[str, str]:
    """Return which backend serves which device type under the name or combination `backend`."""
    if ":" in backend:
        return dict(pair.split(":", 1) for pair in backend.split(","))
    return dict.fromkeys(dist.Backend.backend_capability.get(backend, ()), backend)


def _options(
    environment: ClusterEnvironment,
    device: torch.device,
    backend: str,
    timeout: timedelta | None,
    init_method: str | None,
) -> dict[str, Any]:
    """Return the keyword arguments of `init_process_group` beside the backend."""
    options: dict[str, Any] = {} if timeout is None else {"timeout": timeout}
    if backends_by_device(backend).get(device.type) == "nccl" and device.index is not None:
        # NCCL then connects at once instead of at the first collective, and barriers know their device.
        options["device_id"] = device
    method = init_method or _file_rendezvous()
    if method == "env://" or (method is None and backend != "xla"):
        return options
    if method is None:
        return {**options, "init_method": "xla://"}
    ranks = environment.topology()
    return {**options, "init_method": method, "rank": ranks.rank, "world_size": ranks.world_size}


def _file_rendezvous() -> str | None:
    """Return the file in which processes of a debugging launch meet, as an init method."""
    path = os.environ.get("ACCELERATE_DEBUG_RDV_FILE")
    return f"file://{path}" if path else None


def _registered_for(device: torch.device) -> str:
    """Return the backend that torch has registered for `device`."""
    found = dist.Backend.default_device_backend_map.get(device.type)
    if found is None:
        raise ValueError(
            message(
                given=f"several processes on devices of type {device.type!r}",
                why="no collective backend is registered for them",
                allowed=f"devices of type {', '.join(sorted(dist.Backend.default_device_backend_map))}",
                do="import the package that registers a backend, or name one: InitProcessGroupKwargs(backend=...)",
            )
        )
    return found


def _available(backend: str, device: torch.device) -> str:
    """Return `backend`, or gloo where torch was built without it and gloo can stand in."""
    if dist.is_backend_available(backend) or device.type not in backends_by_device("gloo"):
        return backend
    warn_once(f"This build of torch has no {backend} backend; collectives on {device.type} go through gloo, slowly.")
    return "gloo"


def _check_serves(backend: str, device: torch.device, preferred: str | None) -> None:
    """Refuse a backend that doesn't exist, isn't built, or can't move tensors of `device`."""
    if backend == preferred:
        return
    names = set(backends_by_device(backend).values()) or {backend}
    unknown = sorted(name for name in names if not dist.is_backend_available(name))
    if unknown:
        known = [name for name in dist.Backend.backend_list if name != "undefined"]
        built = [name for name in known if dist.is_backend_available(name)]
        why = "this build of torch doesn't include it" if unknown[0] in known else "there is no such backend"
        raise ValueError(
            message(
                given=f"backend {unknown[0]!r}", why=why, allowed=", ".join(built), do=did_you_mean(unknown[0], built)
            )
        )
    if device.type not in backends_by_device(backend):
        able = [name for name in dist.Backend.backend_list if device.type in backends_by_device(name)]
        raise ValueError(
            message(
                given=f"backend {backend!r} for a run on devices of type {device.type!r}",
                why=f"it doesn't move tensors of type {device.type!r}",
                allowed=preferred or ", ".join(able) or "a backend that is registered for that device",
                do="leave the backend out and the right one is chosen",
            )
        )


def _port_taken(port: int) -> str:
    """Return the error for a meeting point where something else listens."""
    return message(
        given=f"port {port} for the processes to meet",
        why=f"it is in use by {who_holds(port) or f'another process (`ss -ltnp sport = :{port}` shows which)'}",
        allowed="a free port, the same for every process of the run",
        do="set MASTER_PORT to another one, or use `accelerate launch --main_process_port 0`, which picks a free one",
    )


def _check_running(device: torch.device) -> None:
    """Say so when the group that the script has formed can't serve the device."""
    serves = backends_by_device(str(dist.get_backend_config()))
    if device.type not in serves:
        warn_once(
            f"The process group that exists already serves {', '.join(sorted(serves))} tensors, while this process "
            f"computes on {device}: collectives will fail. Form it with a backend for {device.type}, or let the "
            "library form it."
        )
