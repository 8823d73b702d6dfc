"""Operations on any nested structure, by property: each leaf as if it had travelled alone."""

from __future__ import annotations

from collections import namedtuple

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from accelerate.comm import operations
from accelerate.comm.collectives import as_bytes
from accelerate.comm.fake import FakeWorld
from accelerate.comm.tree import leaves, leaves_with_paths

Pair = namedtuple("Pair", ["x", "y"])
FLOATS = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
DTYPES = [*FLOATS, torch.int64, torch.int32, torch.int16, torch.uint8]

shapes = st.sampled_from([(), (1,), (3,), (2, 2), (0, 3), (1, 3, 2)])
tensors = st.tuples(shapes, st.sampled_from([*DTYPES, torch.bool, torch.complex64, torch.float8_e5m2]))
structures = st.recursive(
    tensors,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.dictionaries(st.text("abc", max_size=2), inner, max_size=4),
        st.tuples(inner, inner).map(lambda parts: ("pair", *parts)),
    ),
    max_leaves=8,
)


def build(structure, rank):
    """Tensors for a description made by `structures`, with values that differ between ranks."""
    if isinstance(structure, list):
        return [build(part, rank) for part in structure]
    if isinstance(structure, dict):
        return {key: build(part, rank) for key, part in structure.items()}
    if structure[0] == "pair":
        return Pair(build(structure[1], rank), build(structure[2], rank))
    shape, dtype = structure
    numbers = (torch.arange(torch.Size(shape).numel()) + rank) % 3
    return numbers.reshape(shape).to(torch.float32).to(dtype)


def raw(tensor):
    """Dtype, shape and bytes of a tensor, to be compared."""
    return tensor.dtype, tuple(tensor.shape), as_bytes(tensor.contiguous().view(-1)).tolist()


def everywhere(world_size, operation, make, *args, **kwargs):
    """Run `operation(ranks, make(rank), ...)` on every rank and return the results."""
    return FakeWorld(world_size).run(lambda ranks: operation(ranks, make(ranks.rank), *args, **kwargs))


@settings(deadline=None, max_examples=60)
@given(structure=structures, world_size=st.integers(2, 3))
def test_any_structure_is_gathered_leaf_by_leaf(structure, world_size):
    inputs = [build(structure, rank) for rank in range(world_size)]
    before = [[raw(leaf) for leaf in leaves(each)] for each in inputs]
    results = everywhere(world_size, operations.gather, lambda rank: inputs[rank])
    columns = list(zip(*(leaves(each) for each in inputs), strict=True))
    expected = [torch.stack(each) if each[0].dim() == 0 else torch.cat(each) for each in columns]
    for result in results:
        assert [raw(leaf) for leaf in leaves(result)] == [raw(leaf) for leaf in expected]
        assert [path for path, _ in leaves_with_paths(result)] == [path for path, _ in leaves_with_paths(inputs[0])]
    assert [[raw(leaf) for leaf in leaves(each)] for each in inputs] == before


@settings(deadline=None, max_examples=60)
@given(structure=structures, world_size=st.integers(2, 3), data=st.data())
def test_any_structure_is_broadcast_in_place(structure, world_size, data):
    source = data.draw(st.integers(0, world_size - 1))
    inputs = [build(structure, rank) for rank in range(world_size)]
    results = everywhere(world_size, operations.broadcast, lambda rank: inputs[rank], from_process=source)
    sent = [raw(leaf) for leaf in leaves(build(structure, source))]
    for given_data, result in zip(inputs, results, strict=True):
        assert [raw(leaf) for leaf in leaves(result)] == sent
        assert all(one is other for one, other in zip(leaves(result), leaves(given_data), strict=True))


@settings(deadline=None, max_examples=60)
@given(structure=structures, world_size=st.integers(2, 3))
def test_any_structure_is_reduced_leaf_by_leaf(structure, world_size):
    inputs = [build(structure, rank) for rank in range(world_size)]
    before = [[raw(leaf) for leaf in leaves(each)] for each in inputs]
    results = everywhere(world_size, operations.reduce, lambda rank: inputs[rank], "sum")
    for index, column in enumerate(zip(*(leaves(each) for each in inputs), strict=True)):
        exact = torch.stack([each.to(torch.complex64) for each in column]).sum(0)
        expected = (exact if column[0].is_complex() else exact.real).to(column[0].dtype)
        assert all(raw(leaves(result)[index]) == raw(expected) for result in results)
    assert [[raw(leaf) for leaf in leaves(each)] for each in inputs] == before


@settings(deadline=None, max_examples=40)
@given(
    sizes=st.lists(st.lists(st.integers(0, 4), min_size=2, max_size=2), min_size=1, max_size=4),
    dtype=st.sampled_from([*DTYPES, torch.bool]),
    pad_first=st.booleans(),
    dim=st.sampled_from([1, -1]),
)
def test_any_sizes_are_padded(sizes, dtype, pad_first, dim):
    def make(rank):
        return {index: torch.ones(2, size[rank], dtype=dtype) for index, size in enumerate(sizes)}

    results = everywhere(2, operations.pad_across_processes, make, dim=dim, pad_first=pad_first)
    for rank, result in enumerate(results):
        for index, size in enumerate(sizes):
            row = [1] * size[rank] + [0] * (max(size) - size[rank])
            assert result[index].dtype is dtype
            assert result[index].int().tolist() == [row[::-1] if pad_first else row] * 2
