"""How the machines of a run find each other: names, the port, and clocks that agree.

Run at the same time on all machines, the one of rank 0 listens where the run would meet, and the others ask it for the
time: who gets an answer can reach it.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator

from accelerate.base.ports import is_port_in_use, who_holds
from accelerate.doctor.finding import Finding, Visit, failure, ok, warning
from accelerate.launchers.settings import DEFAULT_PORT

#: How far clocks may be apart, in seconds, before logs and files of machines no longer compare.
SKEW = 1.0


def meeting_point(visit: Visit) -> Iterator[Finding]:
    """Yield whether the address of the main process is known, and the port is free there."""
    settings = visit.settings
    name, port = settings.get("main_process_ip"), settings.port
    if name:
        try:
            found = sorted({str(facts[4][0]) for facts in socket.getaddrinfo(name, None)})
        except OSError as error:
            yield failure(f"{name} has no address: {error.strerror}", "correct --main_process_ip, or the name service")
            return
        yield ok(f"{name} is {', '.join(found)}")
    if port is not None and int(settings.get("machine_rank")) == 0:
        if is_port_in_use(port):
            yield failure(f"port {port} is in use by {who_holds(port) or 'somebody'}", "name another main_process_port")
        else:
            yield ok(f"port {port} is free")


def machines(visit: Visit) -> Iterator[Finding]:
    """Yield whether the machines reach each other, and how far their clocks are apart."""
    settings = visit.settings
    others = settings.num_machines - 1
    if not others:
        return
    address, port = str(settings.get("main_process_ip")), settings.port or DEFAULT_PORT
    if int(settings.get("machine_rank")) == 0:
        yield answer_others(port, others, visit.patience)
    else:
        yield ask_main(address, port, visit.patience)


def answer_others(port: int, others: int, patience: float) -> Finding:
    """Tell the time to the other machines, and return how many have asked."""
    until = time.monotonic() + patience
    asked: set[str] = set()
    with socket.create_server(("", port)) as server:
        while len(asked) < others and (left := until - time.monotonic()) > 0:
            server.settimeout(left)
            try:
                peer, where = server.accept()
            except TimeoutError:
                break
            with peer:
                peer.settimeout(5)
                asked.add(f"{where[0]} {peer.recv(64)!r}")
                peer.sendall(repr(time.time()).encode())
    if len(asked) == others:
        return ok("the other machine has reached this one" if others == 1 else f"all {others} others have reached it")
    return failure(
        f"{len(asked)} of {others} other machines have reached port {port} within {patience:.0f} s",
        "run `accelerate doctor` on all machines at the same time, and open the port in their firewalls",
    )


def ask_main(address: str, port: int, patience: float) -> Finding:
    """Ask the main machine for the time, and return how far the clocks are apart."""
    until, tries, last = time.monotonic() + patience, 0, "no answer"
    while time.monotonic() < until:
        tries += 1
        try:
            with socket.create_connection((address, port), timeout=5) as main:
                sent = time.time()
                main.sendall(socket.gethostname().encode()[:64])
                theirs = float(main.recv(64))
                got = time.time()
        except (OSError, ValueError) as error:
            last = str(error)
            time.sleep(0.5)
            continue
        apart = theirs - (sent + got) / 2
        text = f"{address}:{port} answers within {(got - sent) * 1000:.1f} ms; its clock is {apart:+.2f} s from ours"
        return warning(text, "let all machines ask the same time server (NTP)") if abs(apart) > SKEW else ok(text)
    return failure(
        f"{address}:{port} wasn't reached in {tries} tries over {patience:.0f} s: {last}",
        "run `accelerate doctor` on the main machine at the same time, and open the port in its firewall",
    )
