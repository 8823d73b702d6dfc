"""Device maps: golden plans, plans of random models, tidying, and what is refused."""

from __future__ import annotations

import warnings
from collections import OrderedDict

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from accelerate.big_modeling.device_map import (
    check_device_map,
    clean_device_map,
    infer_auto_device_map,
    plan_device_map,
)
from accelerate.big_modeling.sizes import compute_module_sizes

pytestmark = pytest.mark.usefixtures("accelerators")
LARGE = 10**6


@pytest.fixture
def accelerators(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let any number of accelerators be there, so that none is said to be missing."""
    monkeypatch.setattr("accelerate.big_modeling.budget._warn_unavailable", lambda numbered: None)


def three() -> nn.Module:
    """Three layers of 64, 72 and 100 bytes."""
    return nn.Sequential(OrderedDict(l1=nn.Linear(3, 4), bn=nn.BatchNorm1d(4), l2=nn.Linear(4, 5)))


class Block(nn.Module):
    """Two layers of 40 bytes and a buffer of 4."""

    def __init__(self, buffer: bool = False) -> None:
        super().__init__()
        self.a = nn.Linear(10, 1, bias=False)
        self.b = nn.Linear(10, 1, bias=False)
        if buffer:
            self.register_buffer("scale", torch.ones(1))


@pytest.mark.parametrize(
    ("budget", "expected"),
    [
        ({0: 200, "cpu": LARGE}, {"l1": 0, "bn": "cpu", "l2": "cpu"}),
        ({0: 200, 1: 400, "cpu": 100}, {"l1": 0, "bn": 1, "l2": 1}),
        ({0: 200, 1: 200}, {"l1": 0, "bn": 1, "l2": 1}),
        ({0: 236, "cpu": LARGE}, {"l1": 0, "bn": 0, "l2": 0}),
        ({0: 63, 1: 100, 2: 50, "cpu": 400}, {"l1": 1, "bn": "cpu", "l2": "cpu"}),
        ({1: 200, 0: 200}, {"l1": 0, "bn": 1, "l2": 1}),
        ({0: 0, 1: 1000}, {"l1": 1, "bn": 1, "l2": 1}),
        ({0: 165, 1: 72, 2: 100, "cpu": 1}, {"l1": 0, "bn": 1, "l2": 2}),
        ({"cpu": 236}, {"l1": "cpu", "bn": "cpu", "l2": "cpu"}),
        ({"cpu": 100}, {"l1": "disk", "bn": "disk", "l2": "disk"}),
        ({"mps": 300, "cpu": 10}, {"l1": "mps", "bn": "mps", "l2": "mps"}),
    ],
    ids=str,
)
def test_golden_plans(budget: dict, expected: dict) -> None:
    assert infer_auto_device_map(three(), max_memory=budget, clean_result=False) == expected
    assert infer_auto_device_map(three(), max_memory=budget) == clean_device_map(dict(expected))


def test_a_block_is_split_unless_its_class_is_not_to_be() -> None:
    model = nn.Sequential(Block(), Block())
    split = infer_auto_device_map(model, max_memory={0: 80, 1: 120, "cpu": 0})
    assert split == {"0.a": 0, "0.b": 1, "1": 1}
    whole = infer_auto_device_map(model, max_memory={0: 80, 1: 160}, no_split_module_classes="Block")
    assert whole == {"": 1}


def test_buffers_and_parameters_of_a_split_module_are_placed_too() -> None:
    class Bare(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Parameter(torch.ones(10)), nn.Parameter(torch.ones(10))
            self.block = Block(buffer=True)

    model = Bare()
    plan = infer_auto_device_map(model, max_memory={"cpu": 100}, clean_result=False)
    assert plan == {"first": "cpu", "second": "disk", "block": "disk"}
    check_device_map(model, plan)
    blocks = nn.Sequential(Block(buffer=True), Block(buffer=True))
    plan = infer_auto_device_map(blocks, max_memory={"cpu": 165})
    assert plan == {"0": "cpu", "1.a": "cpu", "1.b": "disk", "1.scale": "disk"}
    check_device_map(blocks, plan)


def tied(first: int = 10) -> nn.Module:
    model = nn.Sequential(
        OrderedDict(l1=nn.Linear(first, 10, bias=False), l2=nn.Linear(10, 10, bias=False), l3=Block())
    )
    model.l3.b.weight = nn.Parameter(model.l1.weight.data)
    model.l3.b = nn.Linear(first, 10, bias=False)
    model.l3.b.weight = model.l1.weight
    return model


@pytest.mark.parametrize(
    ("budget", "expected"),
    [
        ({0: 890, "cpu": LARGE}, {"l1": 0, "l3": 0, "l2": 0}),
        ({0: 400, 1: 450, "cpu": LARGE}, {"l1": 1, "l3": 1, "l2": "cpu"}),
        ({0: 830, 1: 800, "cpu": LARGE}, {"l1": 0, "l3.b": 0, "l2": 1, "l3.a": 1}),
    ],
    ids=str,
)
def test_what_shares_parameters_goes_together_and_is_split_to_fit(budget: dict, expected: dict) -> None:
    plan = infer_auto_device_map(tied(), max_memory=budget, clean_result=False)
    assert plan == expected


def test_dtypes_count() -> None:
    budget = {0: 130, "cpu": LARGE}
    assert infer_auto_device_map(three(), max_memory=budget) == {"": "cpu"}
    assert infer_auto_device_map(three(), max_memory=budget, dtype=torch.float16) == {"": 0}
    special = {"l1.weight": "float16", "l2.weight": "float16"}
    assert infer_auto_device_map(three(), max_memory={0: 172}, special_dtypes=special) == {"": 0}


def test_a_device_that_would_stay_empty_gets_what_fits() -> None:
    model = nn.Sequential(nn.Linear(50, 1, bias=False), Block(), nn.Linear(3, 1, bias=False))
    budget = {0: 0, 1: 45, "cpu": LARGE}
    assert infer_auto_device_map(model, max_memory=budget) == {"": "cpu"}
    found = infer_auto_device_map(model, max_memory=budget, fallback_allocation=True, clean_result=False)
    assert found == {"1.a": 1, "0": "cpu", "1.b": "cpu", "2": "cpu"}


def test_the_limit_of_the_disk_is_kept() -> None:
    assert infer_auto_device_map(three(), max_memory={"cpu": 100, "disk": 236}) == {"": "disk"}
    with pytest.raises(ValueError, match=r"l2 takes 100 B(.|\n)*leave out 'disk'"):
        infer_auto_device_map(three(), max_memory={"cpu": 100, "disk": 200})


def test_every_decision_can_be_printed(capsys: pytest.CaptureFixture[str]) -> None:
    infer_auto_device_map(tied(), max_memory={0: 440, 1: 2000, "cpu": 0}, verbose=True)
    assert capsys.readouterr().out.splitlines() == [
        "l1 (400 B, with l3 that it shares parameters with) does not fit on 0 "
        "(room 40 B, 400 B kept for the largest layer to come)",
        "l1 (400 B, with l3 that it shares parameters with) -> 1 (room 2.0 KiB)",
        "l2 (400 B) -> 1 (room 1.5 KiB)",
    ]
    infer_auto_device_map(nn.Sequential(Block()), max_memory={0: 80, "cpu": 40}, verbose=True)
    assert capsys.readouterr().out == "0 (80 B) -> 0 (room 80 B)\n"


def test_a_plan_says_how_full_devices_are() -> None:
    plan = plan_device_map(three(), max_memory={0: 200, 1: 400, "cpu": 100})
    assert plan.used == {0: 64, 1: 172, "cpu": 0, "disk": 0}
    assert plan.budget == {0: 200, 1: 400, "cpu": 100}
    assert [decision.action for decision in plan.decisions] == ["placed", "too large", "placed", "placed"]


def test_buffers_that_have_no_room_are_warned_about() -> None:
    model = nn.Sequential(OrderedDict(a=nn.Linear(10, 1, bias=False), b=nn.BatchNorm1d(100)))
    infer_auto_device_map(model, max_memory={0: 850, "cpu": LARGE})
    infer_auto_device_map(model, max_memory={0: 100, "cpu": LARGE}, offload_buffers=True)
    with pytest.warns(UserWarning, match="808 B and stay on the accelerator, where 100 B are left"):
        infer_auto_device_map(model, max_memory={0: 100, "cpu": LARGE})


def test_models_without_anything_to_divide() -> None:
    assert infer_auto_device_map(nn.ReLU(), max_memory={0: 10}) == {"": 0}
    assert infer_auto_device_map(nn.Linear(2, 2), max_memory={0: 100}) == {"": 0}
    assert infer_auto_device_map(nn.Sequential(nn.ReLU(), nn.Linear(2, 2)), max_memory={0: 100}) == {"": 0}


@st.composite
def models(draw: st.DrawFn, depth: int = 3) -> nn.Module:
    """Draw a tree of modules with layers, and sometimes parameters of their own."""
    if depth == 0 or draw(st.booleans()):
        return nn.Linear(draw(st.integers(1, 6)), draw(st.integers(1, 6)), bias=draw(st.booleans()), device="meta")
    module = nn.Sequential(*draw(st.lists(models(depth - 1), min_size=1, max_size=3)))
    if draw(st.booleans()):
        module.register_parameter("own", nn.Parameter(torch.empty(draw(st.integers(1, 9)), device="meta")))
    return module


@given(models(), st.lists(st.integers(0, 400), min_size=1, max_size=3), st.integers(0, 300), st.booleans())
def test_plans_of_any_model(model: nn.Module, accelerator: list[int], host: int, fallback: bool) -> None:
    budget: dict[int | str, int] = {**dict(enumerate(accelerator)), "cpu": host}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        plan = infer_auto_device_map(model, max_memory=budget, clean_result=False, fallback_allocation=fallback)
        tidy = infer_auto_device_map(model, max_memory=budget, fallback_allocation=fallback)
    check_device_map(model, plan)
    check_device_map(model, tidy)
    sizes = compute_module_sizes(model)
    for device, limit in budget.items():
        assert sum(sizes[name] for name, place in plan.items() if place == device) <= limit
    assert sum(sizes[name] for name in plan) == sizes[""]
    order = [*budget, "disk"]
    if not fallback:
        places = [order.index(place) for place in plan.values()]
        assert places == sorted(places)


@pytest.mark.parametrize(
    ("given", "tidy"),
    [
        ({"a": 0, "b": 0}, {"": 0}),
        ({"a.x": 0, "a.y": 0, "b": 1}, {"a": 0, "b": 1}),
        ({"a.x": 0, "a.y": 1}, {"a.x": 0, "a.y": 1}),
        ({"a.b.c": 1, "a.b.d": 1, "a.e": 2}, {"a.b": 1, "a.e": 2}),
        ({"a.b.c.x": 1, "a.b.c.y": 1, "z": 2}, {"a": 1, "z": 2}),
        ({"": 0}, {"": 0}),
        ({"a.b": 0}, {"a.b": 0}),
        ({"l.1": 0, "l.10": 0, "l.2": 1}, {"l.1": 0, "l.10": 0, "l.2": 1}),
        ({}, {}),
    ],
    ids=str,
)
def test_tidying(given: dict, tidy: dict) -> None:
    before = dict(given)
    assert clean_device_map(given) == tidy
    assert given == tidy
    assert list(tidy) == list(given)
    assert clean_device_map(before) == clean_device_map(dict(tidy))


def test_tidying_one_module_only() -> None:
    assert clean_device_map({"a.x": 0, "a.y": 0, "b.x": 1, "b.y": 1}, "a") == {"a": 0, "b.x": 1, "b.y": 1}


def test_a_map_covers_the_model() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)))
    for good in ({"": 0}, {"0": 0, "1": 1}, {"0.weight": 0, "0.bias": 1, "1": 0}):
        check_device_map(model, good)
    with pytest.warns(UserWarning, match="nothing called 2.x, other: these keys"):
        check_device_map(model, {"0": 0, "1": 1, "other": 1, "2.x": 1})


def test_what_a_map_misses_is_named_and_what_was_meant() -> None:
    model = nn.ModuleDict({"encoder": nn.Linear(2, 2), "decoder": nn.Linear(2, 2)})
    with pytest.warns(UserWarning, match="decodr"), pytest.raises(ValueError, match="decoder.bias") as error:
        check_device_map(model, {"encoder": 0, "decodr": 1})
    assert "'decodr' is probably meant to be 'decoder'" in str(error.value)
    with pytest.raises(ValueError, match="where these go: encoder.weight, encoder.bias\n"):
        check_device_map(model, {"decoder": 0})
