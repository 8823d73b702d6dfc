from __future__ import annotations

import pytest
import torch

from accelerate.comm.fake import FakeWorld, WorldBroken


@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_ranks_meet_in_order(world_size):
    results = FakeWorld(world_size).run(lambda ranks: ranks.all_gather_object((ranks.rank, ranks.world_size)))
    assert results == [[(rank, world_size) for rank in range(world_size)]] * world_size


def test_objects_are_copies():
    def exchange(ranks):
        mine = {"rank": ranks.rank}
        return mine, ranks.all_gather_object(mine), ranks.broadcast_object(mine, source=1)

    (mine, gathered, received), (sender, _, back) = FakeWorld(2).run(exchange)
    assert gathered == [{"rank": 0}, {"rank": 1}]
    assert received == back == sender == {"rank": 1}
    assert gathered[0] is not mine
    assert back is not sender


def test_many_rounds_do_not_mix():
    def talk(ranks):
        return [ranks.all_gather_object(ranks.rank * 100 + turn) for turn in range(50)]

    expected = [[turn, 100 + turn, 200 + turn] for turn in range(50)]
    assert FakeWorld(3).run(talk) == [expected] * 3


def test_different_collectives_name_both():
    def disagree(ranks):
        if ranks.rank == 0:
            ranks.barrier()
        else:
            ranks.all_gather(torch.ones(2))

    with pytest.raises(WorldBroken, match=r"rank 0 is in barrier; rank 1 is in all_gather of \[2\] torch.float32"):
        FakeWorld(2).run(disagree)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (lambda ranks: ranks.all_gather(torch.ones(2)), lambda ranks: ranks.all_gather(torch.ones(3))),
        (
            lambda ranks: ranks.all_reduce(torch.ones(2)),
            lambda ranks: ranks.all_reduce(torch.ones(2, dtype=torch.int8)),
        ),
        (lambda ranks: ranks.all_reduce(torch.ones(2)), lambda ranks: ranks.all_reduce(torch.ones(2), "max")),
        (lambda ranks: ranks.broadcast(torch.ones(2), 0), lambda ranks: ranks.broadcast(torch.ones(2), 1)),
        (lambda ranks: ranks.broadcast_object(1, 0), lambda ranks: ranks.broadcast_object(1, 1)),
    ],
    ids=["shape", "dtype", "reduction", "source", "object source"],
)
def test_different_arguments_break_the_world(first, second):
    with pytest.raises(WorldBroken, match="different collectives"):
        FakeWorld(2).run(lambda ranks: (first, second)[ranks.rank](ranks))


def test_every_rank_hears_of_a_disagreement():
    def disagree(ranks):
        try:
            ranks.barrier() if ranks.rank else ranks.all_gather_object(0)
        except WorldBroken as error:
            return str(error)

    heard = FakeWorld(3).run(disagree)
    assert len(set(heard)) == 1
    assert "rank 2 is in barrier" in heard[0]


def test_a_rank_that_raises_frees_the_others_and_is_the_one_reported():
    heard = {}

    def fail(ranks):
        if ranks.rank == 1:
            raise KeyError("lost")
        try:
            ranks.barrier()
        except WorldBroken as error:
            heard[ranks.rank] = str(error)
            raise

    with pytest.raises(KeyError, match="lost"):
        FakeWorld(3).run(fail)
    assert heard.keys() == {0, 2}
    assert all("rank 1 stopped with KeyError: 'lost'" in text for text in heard.values())


@pytest.mark.parametrize("early", [0, 1])
def test_a_rank_that_returns_early_frees_the_others(early):
    def leave(ranks):
        ranks.barrier()
        if ranks.rank != early:
            ranks.all_gather_object("more")

    with pytest.raises(WorldBroken, match=f"rank {early} left before the others: rank {1 - early} waits in all_gather"):
        FakeWorld(2).run(leave)
