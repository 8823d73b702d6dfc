"""Machines that meet: the others wait for the main one, and say what they tried when it can't be reached.

torch waits too, but quietly, for as long as the rendezvous may take, and then fails with the stack of its C++ code.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Mapping
from typing import Any

from accelerate.base.messages import message
from accelerate.launchers.console import say
from accelerate.launchers.plan import LaunchPlan

#: Seconds after which a machine stops waiting for the main one, unless the rendezvous has a limit of its own.
PATIENCE = 900.0
#: Seconds for one attempt to connect, between two attempts, and between two reports of what was tried.
ATTEMPT, PAUSE, REPORT = 5.0, 0.5, 30.0
#: Settings of a rendezvous (--rdzv_conf) that limit how long it takes.
LIMITS = ("join_timeout", "timeout")


def wait_for_main(plan: LaunchPlan, settings: Mapping[str, Any], patience: float | None = None) -> None:
    """Wait until something answers where the machines meet; the main machine itself doesn't wait.

    Args:
        plan: says where, and which machine this is.
        settings: those of the rendezvous.
        patience: seconds to wait; by default what `settings` say, or 15 minutes.

    Raises:
        RuntimeError: nothing has answered by then.
    """
    if plan.num_machines == 1 or plan.machine_rank == 0 or plan.address is None or not plan.port:
        return
    limit = limit_of(settings) if patience is None else patience
    started = time.monotonic()
    report = min(ATTEMPT, limit)
    while (error := failure_to_connect(plan.address, plan.port)) is not None:
        waited = time.monotonic() - started
        if waited >= limit:
            raise unreachable(plan, error, waited)
        if waited >= report:
            say(f"waiting for the main machine at {plan.address}, port {plan.port}, up to {limit:g} s: {error}")
            report = waited + REPORT
        time.sleep(min(PAUSE, max(limit - waited, 0)))


def own_address(plan: LaunchPlan) -> str | None:
    """Return the address of this machine on the way to the main one, or None if that can't be told.

    torch would give its host name to the others, which may not know it, or know it by the address of another network.
    """
    try:
        family, kind, protocol, _, place = socket.getaddrinfo(plan.address, plan.port, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind, protocol) as outward:
            outward.connect(place)  # of datagrams: nothing is sent
            address = str(outward.getsockname()[0])
    except OSError:
        return None
    return None if address.startswith("127.") or address == "::1" else address


def limit_of(settings: Mapping[str, Any]) -> float:
    """Return how many seconds a rendezvous may take."""
    return next((float(settings[name]) for name in LIMITS if name in settings), PATIENCE)


def failure_to_connect(address: str, port: int) -> str | None:
    """Return why nothing answers at an address, or None if something does."""
    try:
        with socket.create_connection((address, port), timeout=ATTEMPT):
            return None
    except socket.gaierror as error:
        return f"the name can't be resolved ({error.strerror})"
    except TimeoutError:
        return f"no answer within {ATTEMPT:g} s"
    except OSError as error:
        return str(error.strerror or error).lower()


def unreachable(plan: LaunchPlan, error: str, waited: float) -> RuntimeError:
    """Return the error for a main machine that doesn't answer."""
    return RuntimeError(
        message(
            given=f"machine {plan.machine_rank} of {plan.num_machines}, to meet the others at {plan.address}, "
            f"port {plan.port}",
            why=f"connecting was tried for {waited:.0f} s; the last time: {error}",
            allowed="an address and a port of machine 0 that this machine can reach, where a launch is running",
            do="start the launch on machine 0, and see that name, port and firewall let this machine through "
            "(`accelerate doctor`); --rdzv_conf timeout=SECONDS waits longer",
        )
    )


def not_met(plan: LaunchPlan, waited: float, error: BaseException, lost: bool = False) -> RuntimeError:
    """Return the error for machines that didn't all come, or for a main one that was lost."""
    said = f"the main machine was lost after {waited:.0f} s" if lost else f"they weren't together after {waited:.0f} s"
    return RuntimeError(
        message(
            given=f"machine {plan.machine_rank} of {plan.num_machines}, meeting the others at {plan.address}, "
            f"port {plan.port}",
            why=f"{said}: {first_line(error)}",
            allowed=f"{plan.num_machines} machines that start the same launch within the time limit",
            do="look at the launch on the other machines, each with its own --machine_rank; "
            "--rdzv_conf timeout=SECONDS waits longer",
        )
    )


def first_line(error: BaseException) -> str:
    """Return the first line of what an error says, or its name."""
    lines = str(error).splitlines()
    return lines[0] if lines else type(error).__name__


def meet(plan: LaunchPlan, run: Callable[[], Any]) -> Any:
    """Run what makes machines meet, and tell in our own words when they don't.

    Raises:
        RuntimeError: not all came.
    """
    from torch.distributed import DistError, DistNetworkError
    from torch.distributed.elastic.rendezvous import RendezvousConnectionError, RendezvousError

    started = time.monotonic()
    try:
        return run()
    except (DistError, RendezvousError) as error:
        if plan.num_machines == 1:
            raise
        lost = isinstance(error, (DistNetworkError, RendezvousConnectionError))
        raise not_met(plan, time.monotonic() - started, error, lost) from error
