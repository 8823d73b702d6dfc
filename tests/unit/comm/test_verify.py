from __future__ import annotations

import linecache

import pytest
import torch

from accelerate.comm import operations
from accelerate.comm.fake import FakeWorld
from accelerate.comm.verify import DistributedOperationException, call_site


def said(function, world_size=2, error=DistributedOperationException):
    """Run a function that must fail in the same way on every rank, and return what it said."""

    def fail(ranks):
        with pytest.raises(error) as caught:
            function(ranks)
        return str(caught.value)

    messages = FakeWorld(world_size, debug=True).run(fail)
    assert len(set(messages)) == 1
    return messages[0]


@pytest.mark.parametrize("name", ["gather", "broadcast", "reduce"])
def test_shapes_of_every_rank_are_shown(name):
    text = said(lambda ranks: getattr(operations, name)(ranks, {"a": torch.ones(2 + ranks.rank)}))
    assert f"Operation: `accelerate.utils.operations.{name}`\nInput shapes:\n" in text
    assert "  - Process 0: {'a': [2]}\n  - Process 1: {'a': [3]}\n" in text
    assert "All shapes across devices must be valid." in text
    assert f"Process 1: {name}(" in text
    assert f"{__file__}:" in text


def test_the_call_site_is_the_line_of_the_script():
    def gather(ranks):
        operations.gather(ranks, [torch.ones(1 + ranks.rank), torch.tensor(1)])

    site = next(line for line in said(gather).splitlines() if "Process 0: gather()" in line)
    number = int(site.split(f"{__file__}:")[1].split()[0])
    assert "operations.gather(ranks, [torch.ones(1 + ranks.rank)" in linecache.getline(__file__, number)
    assert "data[0]: torch.float32 on cpu, data[1]: torch.int64 on cpu" in site
    assert call_site().startswith(__file__)


def test_ranks_in_different_operations():
    def wander(ranks):
        if ranks.rank == 0:
            operations.gather(ranks, torch.ones(2))
        elif ranks.rank == 1:
            operations.gather_object(ranks, [1])
        else:
            operations.broadcast(ranks, torch.ones(2), from_process=1)

    text = said(wander, world_size=3)
    assert "the processes are in different operations" in text
    for rank, name in enumerate(["gather()", "gather_object()", "broadcast(from_process=1)"]):
        assert f"Process {rank}: {name} at {__file__}:" in text


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda ranks: operations.reduce(ranks, torch.ones(1), ["sum", "max"][ranks.rank]), "reduce(max)"),
        (lambda ranks: operations.broadcast(ranks, torch.ones(1), ranks.rank), "broadcast(from_process=1)"),
        (
            lambda ranks: operations.broadcast_object_list(ranks, [1], ranks.rank),
            "broadcast_object_list(from_process=1)",
        ),
        (
            lambda ranks: operations.gather(ranks, torch.ones(1, dtype=[torch.int8, torch.bool][ranks.rank])),
            "torch.bool",
        ),
        (lambda ranks: operations.gather(ranks, {"ab"[ranks.rank]: torch.ones(1)}), "{'b': [1]}"),
        (lambda ranks: operations.gather(ranks, torch.ones(1, device=["cpu", "meta"][ranks.rank])), "on meta"),
        (lambda ranks: operations.pad_across_processes(ranks, [torch.ones(1)] * (1 + ranks.rank)), "[[1], [1]]"),
    ],
    ids=["reduction", "source", "object source", "dtype", "structure", "device", "number of leaves"],
)
def test_other_disagreements(call, text):
    assert text in said(call)


@pytest.mark.parametrize("name", ["gather", "broadcast", "reduce", "pad_across_processes"])
def test_one_bad_leaf_is_refused_on_every_rank(name):
    def bad(ranks):
        getattr(operations, name)(ranks, {"a": [torch.ones(1), 3 if ranks.rank == 1 else torch.ones(1)]})

    text = said(bad, error=TypeError)
    assert f"<class 'int'> at data['a'][1] on process 1, passed to `{name}` at {__file__}" in text


def test_what_agrees_goes_through():
    def work(ranks):
        data = {"a": torch.full((2,), float(ranks.rank)), "b": [torch.tensor(ranks.rank)]}
        padded = operations.pad_across_processes(ranks, torch.ones(1 + ranks.rank))
        operations.broadcast_object_list(ranks, [ranks.rank])
        return (
            operations.gather(ranks, data)["b"][0].tolist(),
            operations.reduce(ranks, data, "sum")["a"].tolist(),
            operations.broadcast(ranks, data, 1)["a"].tolist(),
            operations.gather_object(ranks, ["x"] * ranks.rank),
            padded.tolist(),
        )

    results = FakeWorld(2, debug=True).run(work)
    assert results[0] == ([0, 1], [1, 1], [1, 1], ["x"], [1, 0])
