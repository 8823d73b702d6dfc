"""The ranks of a process, and what follows from them."""

from __future__ import annotations

import dataclasses

import pytest

from accelerate.cluster.topology import Topology, topology_from


def test_a_process_is_alone_by_default() -> None:
    alone = Topology()
    assert (alone.world_size, alone.num_nodes) == (1, 1)
    assert alone.is_main
    assert alone.is_local_main
    assert alone.is_last


@pytest.mark.parametrize(
    ("rank", "local_rank", "main", "local_main", "last"),
    [(0, 0, True, True, False), (1, 1, False, False, False), (2, 0, False, True, False), (3, 1, False, False, True)],
)
def test_who_is_first_and_last(rank: int, local_rank: int, main: bool, local_main: bool, last: bool) -> None:
    ranks = topology_from(rank, 4, local_rank, 2)
    assert (ranks.is_main, ranks.is_local_main, ranks.is_last) == (main, local_main, last)


@pytest.mark.parametrize(
    ("rank", "world_size", "local_world_size", "node_rank", "num_nodes"),
    [(0, 1, 1, 0, 1), (3, 4, 4, 0, 1), (5, 8, 4, 1, 2), (4, 5, 2, 2, 3), (0, 1, 0, 0, 1)],
)
def test_machines_are_numbered_in_the_order_of_their_ranks(
    rank: int, world_size: int, local_world_size: int, node_rank: int, num_nodes: int
) -> None:
    ranks = topology_from(rank, world_size, 0, local_world_size)
    assert (ranks.node_rank, ranks.num_nodes) == (node_rank, num_nodes)


def test_ranks_do_not_change() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        Topology().rank = 1
