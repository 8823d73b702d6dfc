"""Machines that start again together: two agents' rendezvous in two threads, over a real store."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
from torch.distributed import TCPStore
from torch.distributed.elastic.rendezvous.static_tcp_rendezvous import StaticTCPRendezvous

from accelerate.base.ports import get_free_port
from accelerate.launchers.rounds import Ended, Rounds

LIMIT = 30


class Rendezvous(Rounds, StaticTCPRendezvous):
    """As `accelerate.launchers.elastic` makes it."""


@pytest.fixture
def machines() -> list[Any]:
    port = int(get_free_port())
    return [Rendezvous("127.0.0.1", port, rank, 2, "run", LIMIT) for rank in (0, 1)]


def meet(machines: list[Any]) -> list[Any]:
    """Return where both machines say that the next round meets."""
    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(lambda one: one.next_rendezvous(), machines))


def place(info: Any) -> tuple[str, int]:
    return info.bootstrap_store_info.master_addr, info.bootstrap_store_info.master_port


def test_every_round_has_a_store_of_its_own(machines: list[Any]) -> None:
    first, second, third = (meet(machines) for _ in range(3))
    assert place(first[0]) == place(first[1]) == ("127.0.0.1", machines[0].master_port)
    assert place(second[0]) == place(second[1])
    assert len({place(found[0]) for found in (first, second, third)}) == 3
    address, port = place(third[1])
    TCPStore(address, port, is_master=False, timeout=timedelta(seconds=LIMIT)).set("a", "b")
    first[0].store.set("rank", "0")
    assert not second[1].store.check(["rank"]), "ranks are settled anew"
    assert [(one.rank, one.world_size) for one in third] == [(0, 2), (1, 2)]


def test_a_machine_hears_that_another_has_begun_a_round(machines: list[Any]) -> None:
    meet(machines)
    assert [one.num_nodes_waiting() for one in machines] == [0, 0]
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(machines[1].next_rendezvous)  # its processes failed, and it waits for the main machine
        while not machines[0].num_nodes_waiting():
            pass
        assert place(machines[0].next_rendezvous()) == place(waiting.result(LIMIT))
    assert [one.num_nodes_waiting() for one in machines] == [0, 0]


def test_a_machine_hears_that_another_has_ended(machines: list[Any]) -> None:
    meet(machines)
    machines[1].end("rank 2 was killed", 137)
    machines[0].end("rank 0 lost its peer", 1)
    for one in machines:
        with pytest.raises(Ended, match="rank 2 was killed") as ended:
            one.num_nodes_waiting()
        assert ended.value.code == 137
