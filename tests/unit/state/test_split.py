from __future__ import annotations

import sys
from collections import UserDict, defaultdict, namedtuple
from types import MappingProxyType, ModuleType

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from accelerate.state.split import share_of, split

Batch = namedtuple("Batch", ["ids", "mask"])


def parts(inputs, world_size, apply_padding=False):
    return [split(inputs, rank, world_size, apply_padding) for rank in range(world_size)]


@given(st.integers(0, 40), st.integers(1, 6), st.booleans())
def test_every_item_goes_to_one_rank_and_padding_evens_out(length, world_size, apply_padding):
    items = list(range(length))
    shares = [share_of(length, rank, world_size, apply_padding) for rank in range(world_size)]
    taken = [items[share.start : share.stop] for share in shares]
    assert [item for part in taken for item in part] == items
    sizes = [len(part) + share.repeats_last for part, share in zip(taken, shares, strict=True)]
    whole, extra = divmod(length, world_size)
    if apply_padding:
        assert set(sizes) == {whole + (extra > 0)}
    else:
        assert sizes == [whole + (rank < extra) for rank in range(world_size)]


TABLE = [
    (["a"], False, [["a"], [], []]),
    (["a"], True, [["a"], ["a"], ["a"]]),
    ([], False, [[], [], []]),
    ([], True, [[], [], []]),
    ([0, 1, 2, 3], False, [[0, 1], [2], [3]]),
    ([0, 1, 2, 3], True, [[0, 1], [2, 3], [3, 3]]),
    ([0, 1, 2], True, [[0], [1], [2]]),
    ((0, 1, 2, 3), False, [(0, 1), (2,), (3,)]),
    ((0, 1, 2, 3), True, [(0, 1), (2, 3), (3, 3)]),
    ({"x": [1, 2, 3, 4]}, True, [{"x": [1, 2]}, {"x": [3, 4]}, {"x": [4, 4]}]),
    ({"x": {"y": [1, 2, 3]}, "z": (4, 5, 6)}, False, [{"x": {"y": [i]}, "z": (i + 3,)} for i in (1, 2, 3)]),
    (range(4), False, [[0, 1], [2], [3]]),
    (range(4), True, [[0, 1], [2, 3], [3, 3]]),
    ({}, False, [{}, {}, {}]),
]


@pytest.mark.parametrize(("inputs", "apply_padding", "expected"), TABLE)
def test_plain_containers(inputs, apply_padding, expected):
    assert parts(inputs, 3, apply_padding) == expected


@pytest.mark.parametrize(
    ("make", "dtype"), [(torch.arange, torch.int64), (lambda n: torch.arange(n) > 1, torch.bool)], ids=["int", "bool"]
)
@pytest.mark.parametrize("apply_padding", [False, True])
def test_tensors_keep_dtype_and_rows(make, dtype, apply_padding):
    rows = make(4).unsqueeze(1).expand(4, 2)
    got = parts(rows, 3, apply_padding)
    assert [part.dtype for part in got] == [dtype] * 3
    expected = [[0, 1], [2, 3], [3, 3]] if apply_padding else [[0, 1], [2], [3]]
    assert [part.tolist() for part in got] == [rows[index].tolist() for index in expected]


def test_tensors_with_fewer_rows_than_ranks():
    assert [part.tolist() for part in parts(torch.arange(1), 2)] == [[0], []]
    assert [part.tolist() for part in parts(torch.arange(1), 2, True)] == [[0], [0]]
    assert [part.shape for part in parts(torch.empty(0, 3), 2, True)] == [(0, 3), (0, 3)]


def test_numpy_arrays():
    assert [part.tolist() for part in parts(np.arange(4), 3, True)] == [[0, 1], [2, 3], [3, 3]]


def test_one_process_gets_the_very_same_object():
    inputs = {"x": [1, 2], "y": 5}
    assert split(inputs, 0, 1) is inputs


def test_inputs_are_never_changed():
    inner = [1, 2, 3]
    inputs = {"x": inner, "y": {"z": inner}}
    parts(inputs, 2, True)
    assert inputs == {"x": [1, 2, 3], "y": {"z": [1, 2, 3]}}
    assert inputs["x"] is inner


def test_tables_keep_their_kind():
    by_default = defaultdict(list, x=[1, 2])
    part = split(by_default, 1, 2)
    assert (type(part), part, part["new"]) == (defaultdict, {"x": [2], "new": []}, [])
    assert by_default == {"x": [1, 2]}

    encoding = UserDict(x=[1, 2])
    part = split(encoding, 1, 2)
    assert (type(part), part.data, encoding.data) == (UserDict, {"x": [2]}, {"x": [1, 2]})

    part = split(Batch([1, 2], torch.tensor([3, 4])), 1, 2)
    assert isinstance(part, Batch)
    assert (part.ids, part.mask.tolist()) == ([2], [4])

    assert split(MappingProxyType({"x": [1, 2]}), 1, 2) == {"x": [2]}


def test_datasets_are_divided_when_that_library_is_loaded(monkeypatch):
    class Dataset:
        def __init__(self, items):
            self.items = items

        def __len__(self):
            return len(self.items)

        def select(self, indices):
            return Dataset([self.items[index] for index in indices])

    library = ModuleType("datasets")
    library.Dataset = Dataset
    monkeypatch.setitem(sys.modules, "datasets", library)
    assert [part.items for part in parts(Dataset("abcd"), 3)] == [["a", "b"], ["c"], ["d"]]
    assert [part.items for part in parts(Dataset("abcd"), 3, True)] == [["a", "b"], ["c", "d"], ["d", "d"]]


@pytest.mark.parametrize(
    "inputs", ["abcd", 7, {1, 2}, torch.tensor(3), iter([1])], ids=lambda value: type(value).__name__
)
def test_what_can_not_be_divided_is_given_whole_and_said_once(inputs):
    with pytest.warns(UserWarning, match=f"can't divide a {type(inputs).__name__}") as warned:
        assert all(part is inputs for part in parts(inputs, 2))
    assert len(warned) == 1


def four_parts(refusal):
    text = str(refusal.value)
    return all(part in text for part in ("Given:", "Why not:", "Allowed:", "What to do:"))


def test_columns_of_different_lengths_are_refused():
    with pytest.raises(ValueError, match="columns with equally many items") as refusal:
        split({"x": [1, 2], "y": {"z": [1]}}, 0, 2)
    assert "inputs['x'] of length 2, inputs['y']['z'] of length 1" in str(refusal.value)
    assert four_parts(refusal)


@pytest.mark.parametrize(
    ("inputs", "path"),
    [({"x": [1], "scale": 7.5}, r"inputs\['scale'\]"), (Batch([1], None), r"inputs\.mask"), ({"s": "ab"}, "'s'")],
)
def test_columns_that_can_not_be_divided_are_named(inputs, path):
    with pytest.raises(TypeError, match=path) as refusal:
        split(inputs, 1, 2)
    assert four_parts(refusal)
