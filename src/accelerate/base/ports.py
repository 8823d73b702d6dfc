"""TCP ports: whether one is taken and by whom, and a free one."""

from __future__ import annotations

import os
import socket
from contextlib import suppress

DEFAULT_PORT = 29500
#: Where a free port is looked for, and how often.
FREE_PORTS, TRIES = range(20000, 29500), 100


def is_port_in_use(port: int | str | None = None) -> bool:
    """Whether something on this machine listens on `port` (29500 by default)."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        return probe.connect_ex(("localhost", int(DEFAULT_PORT if port is None else port))) == 0


def get_free_port() -> int:
    """Return a port that nothing uses at this moment, and that the system gives to nobody by itself.

    What connects to somewhere gets its own port from a range of the system (32768 and up on Linux, 49152 and up
    elsewhere). One from there can be gone before it is used, so the choice falls below; only when nothing is free
    there, the system chooses.
    """
    for _ in range(TRIES):
        wanted = FREE_PORTS[int.from_bytes(os.urandom(4), "big") % len(FREE_PORTS)]
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe, suppress(OSError):
            probe.bind(("", wanted))
            return wanted
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.bind(("", 0))
        return int(probe.getsockname()[1])


def who_holds(port: int) -> str | None:
    """Return the process that listens on `port`, as "process 123 (python train.py)", or None if it can't be seen.

    Processes of other users are usually hidden from the one that asks.
    """
    import psutil

    try:
        connections = psutil.net_connections(kind="tcp")
    except psutil.AccessDenied:
        return None
    holders = {
        one.pid for one in connections if one.status == psutil.CONN_LISTEN and one.laddr and one.laddr.port == port
    }
    return next((_named(pid) for pid in sorted(pid for pid in holders if pid)), None)


def _named(pid: int) -> str:
    """Return a process by number and, when it can be read, its command line."""
    import psutil

    try:
        command = " ".join(" ".join(psutil.Process(pid).cmdline()).split())
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        command = ""
    return f"process {pid} ({command})" if command else f"process {pid}"
