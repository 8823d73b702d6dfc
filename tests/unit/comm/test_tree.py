from __future__ import annotations

import dataclasses
from collections import UserDict, defaultdict, namedtuple

import pytest
import torch

from accelerate.comm import tree
from accelerate.comm.tree import recursively_apply, send_to_device

Pair = namedtuple("Pair", ["x", "y"])


class Movable:
    """An object with a `.to` of its own, which knows `non_blocking` or does not."""

    def __init__(self, picky=False):
        self.picky = picky
        self.moves = []

    def to(self, device, **options):
        if self.picky and options:
            raise TypeError("to() got an unexpected keyword argument")
        self.moves.append((str(device), options))
        return self


class Encoding(UserDict):
    """Moves itself in place, as transformers' BatchEncoding does."""

    def to(self, device, non_blocking=False):
        self.data = {key: value.to(device) for key, value in self.data.items()}
        return self


@dataclasses.dataclass
class Sample:
    image: torch.Tensor
    name: str


def test_send_to_device_moves_every_tensor():
    data = {"a": torch.ones(1), "b": [Pair(torch.ones(2), "text")], "c": defaultdict(list, d=torch.ones(3))}
    moved = send_to_device(data, "meta")
    assert [leaf.device.type for leaf in tree.leaves(moved) if isinstance(leaf, torch.Tensor)] == ["meta"] * 3
    assert moved["b"][0].y == "text"
    assert moved["c"].default_factory is list
    assert data["a"].device.type == "cpu"
    assert send_to_device(Sample(torch.ones(1), "cat"), "meta").image.is_meta


@pytest.mark.parametrize("skip_keys", ["a", ["a"], ("a", "other")])
def test_send_to_device_leaves_skipped_keys(skip_keys):
    data = {"a": torch.ones(1), "b": torch.ones(1), "n": {"a": torch.ones(1)}, "l": [{"a": torch.ones(1)}]}
    moved = send_to_device(data, "meta", skip_keys=skip_keys)
    assert moved["a"] is data["a"]
    assert moved["n"]["a"] is data["n"]["a"]
    assert moved["l"][0]["a"] is data["l"][0]["a"]
    assert moved["b"].is_meta


@pytest.mark.parametrize(("picky", "options"), [(False, {"non_blocking": True}), (True, {})])
def test_send_to_device_uses_to(picky, options):
    thing = Movable(picky)
    assert send_to_device([thing], "cpu", non_blocking=True) == [thing]
    assert thing.moves == [("cpu", options)]


def test_send_to_device_moves_a_copy_of_a_mapping_that_moves_itself():
    encoding = Encoding(a=torch.ones(1), b=torch.ones(1))
    moved = send_to_device(encoding, "meta", skip_keys="b")
    assert type(moved) is Encoding
    assert moved["a"].is_meta
    assert moved["b"] is encoding["b"]
    assert encoding["a"].device.type == "cpu"


def test_recursively_apply():
    data = {"a": torch.ones(1), "b": (3, Pair(torch.ones(1), None))}
    result = recursively_apply(lambda tensor, x, times=1: tensor * times + x, data, 2, times=3)
    assert result == {"a": torch.tensor([5.0]), "b": (3, Pair(torch.tensor([5.0]), None))}


def test_recursively_apply_asks_before_it_opens_an_object():
    sample = Sample(torch.ones(1), "cat")
    names = recursively_apply(lambda each: each.name, [sample], test_type=lambda each: isinstance(each, Sample))
    assert names == ["cat"]
    assert recursively_apply(lambda each: each + 1, [1, "a"], test_type=lambda each: isinstance(each, int)) == [2, "a"]


def test_recursively_apply_names_what_it_refuses():
    def double(tensor):
        return tensor * 2

    with pytest.raises(TypeError, match=r"<class 'int'> at data\['b'\]\[1\], passed to `double`"):
        recursively_apply(double, {"a": torch.ones(1), "b": [torch.ones(1), 3]}, error_on_other_type=True)


@pytest.mark.parametrize(
    ("data", "size"),
    [
        (torch.ones(3, 2), 3),
        ({"a": {"b": torch.ones(4)}, "c": torch.ones(9)}, 4),
        ([Pair(torch.ones(2), 1)], 2),
        (Sample(torch.ones(5), ""), 5),
    ],
)
def test_find_batch_size(data, size):
    assert tree.find_batch_size(data) == size
    assert tree.ignorant_find_batch_size(data) == size


@pytest.mark.parametrize(
    ("data", "error"),
    [({}, ValueError), ([], ValueError), ({"a": []}, ValueError), ([3], TypeError), (torch.tensor(3), ValueError)],
)
def test_no_batch_size(data, error):
    with pytest.raises(error, match="batch size"):
        tree.find_batch_size(data)
    assert tree.ignorant_find_batch_size(data) is None


def test_find_device():
    assert tree.find_device({"a": 3, "b": [torch.ones(1, device="meta")], "c": torch.ones(1)}) == torch.device("meta")
    assert tree.find_device([1, "a"]) is None


def test_listify():
    data = {"a": torch.tensor([1.5], dtype=torch.bfloat16), "b": 3, "c": (torch.tensor(2, requires_grad=False),)}
    assert tree.listify(data) == {"a": [1.5], "b": 3, "c": (2,)}
    assert tree.listify(torch.ones(1, 2, requires_grad=True)) == [[1.0, 1.0]]


def test_slice_tensors():
    data = {"a": torch.arange(6), "b": 3, "c": torch.tensor(1)}
    sliced = tree.slice_tensors(data, slice(1, 3), process_index=0, num_processes=2)
    assert {key: tree.listify(value) for key, value in sliced.items()} == {"a": [1, 2], "b": 3, "c": 1}


def test_concatenate():
    first = {"a": torch.ones(1), "b": [Pair(torch.zeros(1, 2), torch.ones(1))]}
    second = {"b": [Pair(torch.ones(2, 2), torch.ones(1))], "a": torch.zeros(2)}
    joined = tree.concatenate([first, second])
    assert joined["a"].tolist() == [1, 0, 0]
    assert joined["b"][0].x.shape == (3, 2)
    assert type(joined["b"][0]) is Pair
    assert tree.concatenate([torch.ones(2, 1), torch.ones(2, 3)], dim=1).shape == (2, 4)


@pytest.mark.parametrize(
    ("data", "error"),
    [
        ([3, 4], TypeError),
        ([], ValueError),
        ([[torch.ones(1)], []], ValueError),
        ([{"a": 1}, {"a": 2}], TypeError),
        ([{"a": torch.ones(1)}, {"b": torch.ones(1)}], ValueError),
    ],
)
def test_what_can_not_be_concatenated(data, error):
    with pytest.raises(error):
        tree.concatenate(data)


@pytest.mark.parametrize(("size", "processes", "padded"), [(5, 4, 8), (6, 4, 8), (1, 4, 4), (3, 2, 4), (4, 2, 4)])
def test_pad_input_tensors(size, processes, padded):
    data = {"a": torch.ones(size), "b": torch.ones(size, 2, dtype=torch.bool)}
    result = tree.pad_input_tensors(data, size, processes)
    assert result["a"].tolist() == [1] * size + [0] * (padded - size)
    assert result["b"].shape == (padded, 2)
    assert result["b"].dtype is torch.bool
    assert tree.pad_input_tensors(torch.ones(2, size), size, processes, dim=1).shape == (2, padded)


def test_pad_input_tensors_refuses_others():
    with pytest.raises(TypeError, match=r"<class 'int'> at data\[1\]"):
        tree.pad_input_tensors([torch.ones(3), 3], 3, 2)


def test_convert_to_fp32():
    data = {dtype: torch.ones(1, dtype=dtype) for dtype in (torch.float16, torch.bfloat16, torch.float64, torch.int8)}
    converted = tree.convert_to_fp32([data, "text"])
    assert [each.dtype for each in converted[0].values()] == [torch.float32, torch.float32, torch.float64, torch.int8]
    assert converted[1] == "text"


def test_tensor_kinds():
    assert tree.is_torch_tensor(torch.ones(1))
    assert not tree.is_torch_tensor([1])
    assert not tree.is_torch_xpu_tensor(torch.ones(1))
