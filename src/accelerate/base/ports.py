"""TCP ports: whether one is taken and by whom, and a free one."""

from __future__ import annotations

import socket

DEFAULT_PORT = 29500


def is_port_in_use(port: int | str | None = None) -> bool:
    """Whether something on this machine listens on `port` (29500 by default)."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        return probe.connect_ex(("localhost", int(DEFAULT_PORT if port is None else port))) == 0


def get_free_port() -> int:
    """Return a port that nothing uses at this moment."""
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
