from __future__ import annotations

import dataclasses
import warnings
from collections import defaultdict, namedtuple

import pytest
import torch

from accelerate.base.messages import forget_warnings
from accelerate.comm import operations, packing
from accelerate.comm.collectives import Alone
from accelerate.comm.fake import FakeWorld
from accelerate.comm.tree import leaves, map_tensors

Pair = namedtuple("Pair", ["x", "y"])
OPERATIONS = {
    "gather": operations.gather,
    "reduce": operations.reduce,
    "broadcast": operations.broadcast,
    "pad_across_processes": operations.pad_across_processes,
}


@dataclasses.dataclass
class Output:
    loss: torch.Tensor
    logits: torch.Tensor


def everywhere(world_size, operation, make, *args, **kwargs):
    """Run `operation(ranks, make(rank), ...)` on every rank and return the results."""
    return FakeWorld(world_size).run(lambda ranks: operation(ranks, make(ranks.rank), *args, **kwargs))


def rank_tensor(rank, shape=(2,), dtype=torch.float32):
    return torch.full(shape, rank).to(dtype)


# ------------------------------------------------------------------------------------------------ gather


@pytest.mark.parametrize("world_size", [2, 3])
def test_gather_concatenates_along_the_first_dim(world_size):
    results = everywhere(world_size, operations.gather, lambda rank: rank_tensor(rank, (1, 2)))
    assert all(result.tolist() == [[rank, rank] for rank in range(world_size)] for result in results)


@pytest.mark.parametrize("make", [lambda rank: torch.tensor(rank), lambda rank: [torch.tensor(rank), torch.ones(3)]])
def test_gather_makes_numbers_a_vector(make):
    for result in everywhere(3, operations.gather, make):
        first = leaves(result)[0]
        assert first.tolist() == [0, 1, 2]
        assert first.dtype is torch.int64


def test_gather_keeps_the_containers():
    def make(rank):
        factory = defaultdict(list, a=rank_tensor(rank))
        return {"d": factory, "p": Pair(rank_tensor(rank), ()), "o": Output(rank_tensor(rank, ()), rank_tensor(rank))}

    for result in everywhere(2, operations.gather, make):
        assert result["d"].default_factory is list
        assert result["p"] == Pair(result["p"].x, ())
        assert result["p"].x.tolist() == [0, 0, 1, 1]
        assert result["o"].loss.tolist() == [0, 1]


@pytest.mark.parametrize("data", [{}, [], ({}, [])])
@pytest.mark.parametrize("name", OPERATIONS)
def test_nothing_in_the_data(name, data):
    assert everywhere(2, OPERATIONS[name], lambda rank: data) == [data, data]


@pytest.mark.parametrize("name", OPERATIONS)
def test_empty_tensors(name):
    data = [torch.ones(0, 3, dtype=torch.float64), torch.ones(2, 0), torch.ones(0, dtype=torch.complex128)]
    rows = 4 if name == "gather" else 2
    for result in everywhere(2, OPERATIONS[name], lambda rank: data):
        assert [tuple(leaf.shape) for leaf in result] == [(0, 3), (rows, 0), (0,)]
        assert [leaf.dtype for leaf in result] == [leaf.dtype for leaf in data]


def test_gather_of_one_process_returns_what_it_got():
    data = [torch.tensor(1.0, requires_grad=True), 3]
    assert operations.gather(Alone(), data) is data


def test_gathered_tensors_have_no_gradient_and_memory_of_their_own():
    def make(rank):
        weight = torch.ones(2, requires_grad=True)
        return [weight * rank, weight * 2, torch.nn.Parameter(torch.ones(1)), torch.tensor(1), torch.tensor(2)]

    for result in everywhere(2, operations.gather, make):
        assert not any(leaf.requires_grad for leaf in result)
        assert all(leaf.is_contiguous() for leaf in result)
        assert len({leaf.untyped_storage().data_ptr() for leaf in result}) == len(result)


def test_large_tensors_travel_alone(monkeypatch):
    monkeypatch.setattr(packing, "LARGE", 16)

    def count(ranks):
        sent = []
        raw = ranks._gather_flat
        ranks._gather_flat = lambda flat: sent.append(flat.nbytes) or raw(flat)
        data = [torch.ones(4), torch.ones(2), torch.ones(1, dtype=torch.int8), torch.ones(8)]
        return sent, [leaf.numel() for leaf in operations.gather(ranks, data)]

    assert FakeWorld(2).run(count) == [([16, 32, 16], [8, 4, 2, 16])] * 2


TRIPS = {"gather": 1, "broadcast": 1, "pad_across_processes": 1, "reduce": 3}


@pytest.mark.parametrize("name", TRIPS)
def test_number_of_collectives(name):
    data = {str(size): torch.ones(size, dtype=dtype) for size, dtype in enumerate([torch.float32, torch.int64] * 3)}
    data["mask"] = torch.ones(2, dtype=torch.bool)

    def count(ranks):
        calls = []
        for method in ("_gather_flat", "_reduce", "_send"):
            raw = getattr(ranks, method)
            setattr(ranks, method, lambda *args, raw=raw: calls.append(1) or raw(*args))
        OPERATIONS[name](ranks, data, **({"reduction": "sum"} if name == "reduce" else {}))
        return len(calls)

    assert FakeWorld(2).run(count) == [TRIPS[name]] * 2


# ------------------------------------------------------------------------------------------------ reduce


@pytest.mark.parametrize(
    ("reduction", "expected"), [("sum", 6.0), ("mean", 2.0), ("max", 3.0), ("min", 1.0), ("none", 6.0)]
)
def test_reductions(reduction, expected):
    for make in (lambda rank: torch.tensor(rank + 1.0), lambda rank: [torch.tensor(rank + 1.0), torch.ones(2)]):
        for result in everywhere(3, operations.reduce, make, reduction):
            assert leaves(result)[0].item() == expected


def test_reduce_means_by_default():
    assert [each.item() for each in everywhere(2, operations.reduce, lambda rank: torch.tensor(rank * 2.0))] == [1, 1]


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8])
def test_the_mean_of_integers_is_an_integer(dtype):
    for result in everywhere(2, operations.reduce, lambda rank: torch.tensor([rank, 2 * rank, 100], dtype=dtype)):
        assert result.dtype is dtype
        assert result.tolist() == [1, 1, 100]


def test_the_sum_of_booleans_is_any():
    for result in everywhere(2, operations.reduce, lambda rank: torch.tensor([rank == 0, False, True]), "sum"):
        assert result.dtype is torch.bool
        assert result.tolist() == [True, False, True]


def test_the_mean_of_booleans_is_refused_on_every_rank():
    def refuse(ranks):
        with pytest.raises(TypeError, match=r"torch\.bool"):
            operations.reduce(ranks, {"a": torch.ones(1), "b": torch.ones(1, dtype=torch.bool)}, "mean")

    FakeWorld(2).run(refuse)


def test_reduce_copies():
    tensor = torch.ones(2)
    alone = operations.reduce(Alone(), [tensor], "sum")[0]
    assert alone is not tensor
    inputs = [torch.ones(2), torch.ones(2)]
    everywhere(2, operations.reduce, lambda rank: [inputs[rank], inputs[rank]], "sum")
    assert inputs[0].tolist() == [1, 1]


@pytest.mark.parametrize("number", [1, 3])
def test_a_gradient_flows_to_the_own_part(number):
    def train(ranks):
        weight = torch.ones(2, requires_grad=True)
        results = operations.reduce(ranks, [weight * (ranks.rank + 1) for _ in range(number)], "mean")
        results[-1].sum().backward()
        return results[0].tolist(), weight.grad.tolist()

    assert FakeWorld(2).run(train) == [([1.5, 1.5], [0.5, 0.5]), ([1.5, 1.5], [1.0, 1.0])]


def test_an_unknown_reduction_is_refused():
    with pytest.raises(ValueError, match="Did you mean 'mean'"):
        operations.reduce(Alone(), torch.ones(1), "men")


def test_scale_has_an_effect_where_it_is_said_to():
    forget_warnings()
    with pytest.warns(UserWarning, match="XLA devices only"):
        assert operations.reduce(Alone(), torch.ones(1), scale=2.0).tolist() == [1]

    def scaled(ranks):
        ranks.applies_scale = True
        return operations.reduce(ranks, torch.ones(1), "sum", scale=0.5).tolist()

    assert FakeWorld(2).run(scaled) == [[1.0], [1.0]]


# --------------------------------------------------------------------------------------------- broadcast


def test_broadcast_is_in_place():
    def receive(ranks):
        tensor = rank_tensor(ranks.rank)
        return operations.broadcast(ranks, tensor, from_process=1) is tensor, tensor.tolist()

    assert FakeWorld(2).run(receive) == [(True, [1, 1])] * 2


def test_broadcast_reaches_parameters_and_odd_layouts():
    def receive(ranks):
        weight = torch.nn.Parameter(rank_tensor(ranks.rank))
        base = rank_tensor(ranks.rank, (2, 4))
        operations.broadcast(ranks, [weight, base[:, ::2]], from_process=1)
        return weight.tolist(), base[0].tolist(), weight.requires_grad

    assert FakeWorld(2).run(receive) == [([1, 1], [1, 0, 1, 0], True), ([1, 1], [1, 1, 1, 1], True)]


@pytest.mark.parametrize("operation", [operations.broadcast, operations.broadcast_object_list])
@pytest.mark.parametrize("source", [-1, 2])
def test_there_is_no_such_rank(operation, source):
    def refuse(ranks):
        with pytest.raises(ValueError, match=f"from_process={source}"):
            operation(ranks, [torch.ones(1)], from_process=source)

    FakeWorld(2).run(refuse)


# --------------------------------------------------------------------------------------------------- pad


@pytest.mark.parametrize(("pad_index", "padding"), [(0, [False]), (-100, [False]), (1, [True]), (True, [True])])
def test_booleans_are_padded_with_booleans(pad_index, padding):
    def make(rank):
        return torch.tensor([True, False][: 1 + rank])

    short, long = everywhere(2, operations.pad_across_processes, make, pad_index=pad_index)
    assert short.dtype is long.dtype is torch.bool
    assert (short.tolist(), long.tolist()) == ([True, *padding], [True, False])


def test_pad_leaves_what_is_large_enough():
    data = [rank_tensor(0, (3, 2)), torch.tensor(1.0), rank_tensor(0, (2,))]
    for result in everywhere(2, operations.pad_across_processes, lambda rank: data, dim=1):
        assert all(one is other for one, other in zip(result, data, strict=True))
    assert operations.pad_across_processes(Alone(), data) is data


def test_pad_keeps_the_other_dims_and_uses_the_index():
    def make(rank):
        return torch.ones(2, 1 + rank, 2, dtype=torch.int8)

    short, _ = everywhere(2, operations.pad_across_processes, make, dim=1, pad_index=-7)
    assert short.tolist() == [[[1, 1], [-7, -7]]] * 2


def test_dims_that_differ_between_ranks_are_left():
    def make(rank):
        return [torch.ones([1] * (rank + 1)), torch.ones(1, 1 + rank)]

    first, second = everywhere(2, operations.pad_across_processes, make, dim=1)
    assert (first[0].shape, second[0].shape) == ((1,), (1, 1))
    assert first[1].shape == (1, 2)


@pytest.mark.parametrize(("dtype", "pad_index"), [(torch.uint8, -100), (torch.int64, 0.5), (torch.int64, float("inf"))])
def test_a_padding_that_the_dtype_has_not_is_refused_on_every_rank(dtype, pad_index):
    def refuse(ranks):
        with pytest.raises(ValueError, match=r"at data\['a'\]"):
            operations.pad_across_processes(ranks, {"a": torch.ones(1 + ranks.rank).to(dtype)}, pad_index=pad_index)

    FakeWorld(2).run(refuse)


def test_nested_tensors_warn():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        nested = torch.nested.nested_tensor([torch.ones(1), torch.ones(2)], layout=torch.jagged)
        strided = torch.nested.nested_tensor([torch.ones(1), torch.ones(2)])
    with pytest.warns(operations.CannotPadNestedTensorWarning):
        assert operations.pad_across_processes(Alone(), [strided])[0] is strided
    with pytest.warns(operations.CannotPadNestedTensorWarning):
        assert operations.pad_across_processes(Alone(), nested) is nested


# ----------------------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize("name", OPERATIONS)
@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: (torch.ones(1), 1), r"<class 'int'> at data\[1\]"),
        (lambda: {"a": [torch.ones(1), None]}, r"<class 'NoneType'> at data\['a'\]\[1\]"),
        (lambda: Pair(torch.ones(1), "text"), r"<class 'str'> at data\.y"),
        (lambda: torch.ones(2, 2).to_sparse(), r"sparse|dense"),
    ],
    ids=["int", "None", "str", "sparse"],
)
def test_what_can_not_be_sent_is_refused_on_every_rank(name, make, text):
    def refuse(ranks):
        with pytest.raises(TypeError, match=text):
            OPERATIONS[name](ranks, make())
        ranks.barrier()  # nothing was sent: the ranks are still together

    FakeWorld(2).run(refuse)


@pytest.mark.parametrize("operation", [operations.gather, operations.reduce, operations.broadcast])
def test_meta_tensors_are_refused(operation):
    def refuse(ranks):
        with pytest.raises(TypeError, match="holds no data"):
            operation(ranks, torch.ones(1, device="meta"))

    FakeWorld(2).run(refuse)


class Sharded(torch.Tensor):
    """What matters of a DTensor: it stands for a whole."""

    def full_tensor(self):
        return torch.arange(4.0)


def test_a_dtensor_counts_as_the_whole():
    def gather(ranks):
        shard = torch.ones(2).as_subclass(Sharded)
        with pytest.raises(TypeError, match="DTensor"):
            operations.broadcast(ranks, [shard])
        return operations.gather(ranks, shard).tolist(), operations.reduce(ranks, shard, "max").tolist()

    assert FakeWorld(2).run(gather) == [([0, 1, 2, 3, 0, 1, 2, 3], [0, 1, 2, 3])] * 2


def test_tensors_on_another_device_are_moved():
    def gather(ranks):
        ranks.device = torch.device("cpu", 0)  # a device of another name, on the same hardware
        data = map_tensors(lambda tensor: tensor, [torch.ones(1), torch.ones(2)])
        return [leaf.tolist() for leaf in operations.gather(ranks, data)]

    assert FakeWorld(2).run(gather) == [[[1, 1], [1, 1, 1, 1]]] * 2


# ------------------------------------------------------------------------------------------------ objects


def test_gather_object_flattens_one_level():
    assert everywhere(2, operations.gather_object, lambda rank: [rank, [rank]]) == [[0, [0], 1, [1]]] * 2
    assert everywhere(2, operations.gather_object, lambda rank: "ab"[: rank + 1]) == [["a", "a", "b"]] * 2
    assert operations.gather_object(Alone(), {"a": 1}) == {"a": 1}


def test_gather_object_refuses_on_every_rank():
    def refuse(ranks):
        with pytest.raises(TypeError, match="<class 'int'> on process 1"):
            operations.gather_object(ranks, 1 if ranks.rank else [1])

    FakeWorld(2).run(refuse)


def test_broadcast_object_list_is_in_place():
    def receive(ranks):
        objects = [ranks.rank, {"rank": ranks.rank}]
        own = objects[1]
        same = operations.broadcast_object_list(ranks, objects, from_process=1) is objects
        return same, objects, objects[1] is own

    assert FakeWorld(2).run(receive) == [(True, [1, {"rank": 1}], False), (True, [1, {"rank": 1}], True)]
    assert operations.broadcast_object_list(Alone(), [1]) == [1]
