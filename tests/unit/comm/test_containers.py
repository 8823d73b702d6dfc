from __future__ import annotations

import dataclasses
import types
from collections import OrderedDict, UserDict, UserList, defaultdict, deque, namedtuple
from typing import NamedTuple

import pytest
import torch
from torch.utils import _pytree

from accelerate.comm.containers import container_of, honor_type, is_namedtuple
from accelerate.comm.tree import leaves, leaves_with_paths, map_tensors, with_leaves

Pair = namedtuple("Pair", ["x", "y"])


class Typed(NamedTuple):
    x: torch.Tensor
    y: int = 0


class Batch(dict):
    """A dict with an attribute, made from something else than a dict."""

    def __init__(self, source):
        super().__init__(source.items())
        self.source = source


class Items(list):
    """A list with an attribute and another constructor."""

    def __init__(self, first, second, note):
        super().__init__([first, second])
        self.note = note


@dataclasses.dataclass
class Point:
    x: object
    y: object = 0
    derived: object = dataclasses.field(default=None, init=False)

    def __post_init__(self):
        self.derived = "made by __init__"


@dataclasses.dataclass(frozen=True)
class Frozen:
    x: object


@dataclasses.dataclass
class Slotted:
    __slots__ = ("x", "y")
    x: object
    y: object


class Plain:
    def __init__(self, x):
        self.x = x


def add_one(data):
    return map_tensors(lambda tensor: tensor + 1, data)


@pytest.mark.parametrize(
    "make",
    [
        lambda leaf: [leaf, 1],
        lambda leaf: (leaf, "text"),
        lambda leaf: {"a": leaf, 3: None},
        lambda leaf: Pair(leaf, 2),
        lambda leaf: Typed(leaf),
        lambda leaf: OrderedDict(b=leaf, a=1),
        lambda leaf: UserDict(a=leaf),
        lambda leaf: deque([leaf, 1], maxlen=5),
        lambda leaf: Point(leaf, y=1),
        lambda leaf: Frozen(leaf),
        lambda leaf: Slotted(leaf, 2),
        lambda leaf: types.MappingProxyType({"a": leaf}),
        lambda leaf: [{"a": (leaf, [Frozen(Pair(leaf, leaf))])}, {}, ()],
    ],
)
def test_containers_keep_their_kind(make):
    before, after = make(torch.zeros(2)), make(torch.ones(2))
    result = add_one(before)
    assert repr(result) == repr(after)
    assert type(result) is type(before)
    assert repr(before) == repr(make(torch.zeros(2))), "the input was modified"


def test_defaultdict_keeps_its_factory():
    result = add_one(defaultdict(list, a=torch.zeros(1)))
    assert result["new"] == []
    assert result["a"] == 1


def test_subclasses_keep_their_attributes():
    batch = add_one(Batch({"a": torch.zeros(1)}))
    assert type(batch) is Batch
    assert batch["a"] == 1
    assert batch.source.keys() == {"a"}
    items = add_one(Items(torch.zeros(1), 2, note="kept"))
    assert type(items) is Items
    assert items[0] == 1
    assert items.note == "kept"


def test_dataclasses_are_copied_without_their_init():
    point = Point(torch.zeros(1))
    point.derived = "set by hand"
    assert add_one(point).derived == "set by hand"


def test_a_dataclass_without_tensors_stays_itself():
    settings = Frozen(Frozen("text"))
    assert add_one([settings])[0] is settings


def test_unknown_objects_are_leaves():
    plain = Plain(torch.zeros(1))
    assert container_of(plain) is None
    assert add_one([plain]) == [plain]
    assert leaves([plain, {1, 2}, "text", torch.Size([1])]) == [plain, {1, 2}, "text", 1]


def test_types_registered_with_pytree_follow_their_rule():
    class Registered(Plain):
        pass

    assert container_of(Registered(1)) is None
    _pytree.register_pytree_node(Registered, lambda each: ([each.x], None), lambda values, _: Registered(*values))
    try:
        assert add_one(Registered(torch.zeros(1))).x == 1
        assert leaves_with_paths({"r": Registered(5)}) == [("['r'][0]", 5)]
    finally:
        _pytree._deregister_pytree_node(Registered)


@pytest.mark.parametrize(
    ("data", "paths"),
    [
        (1, [""]),
        ({"labels": [1, (2,)]}, ["['labels'][0]", "['labels'][1][0]"]),
        (Pair(1, {"k": 2}), [".x", ".y['k']"]),
        ([Frozen([1])], ["[0].x[0]"]),
        (deque([1]), ["[0]"]),
        (OrderedDict(a=1), ["['a']"]),
        (defaultdict(int, {("t", 1): 1}), ["[('t', 1)]"]),
        ({}, []),
    ],
)
def test_paths(data, paths):
    assert [path for path, _ in leaves_with_paths(data)] == paths
    assert [leaf for _, leaf in leaves_with_paths(data)] == leaves(data)


def test_with_leaves_puts_back_in_order():
    data = {"a": [1, 2], "b": Pair(3, 4)}
    assert with_leaves(data, [10, 20, 30, 40]) == {"a": [10, 20], "b": Pair(30, 40)}


@pytest.mark.parametrize(
    ("value", "expected"),
    [(Pair(1, 2), True), (Typed(1), True), ((1, 2), False), ([1], False), (3, False), (torch.Size([1]), False)],
)
def test_is_namedtuple(value, expected):
    assert is_namedtuple(value) is expected


@pytest.mark.parametrize(
    ("like", "result"), [(Pair(0, 0), Pair(1, 2)), ([0], [1, 2]), ((0,), (1, 2)), (UserList([0]), UserList([1, 2]))]
)
def test_honor_type(like, result):
    made = honor_type(like, (number for number in (1, 2)))
    assert made == result
    assert type(made) is type(result)
