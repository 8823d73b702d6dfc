"""Axes without processes: their defaults, how they are asked, and how plans are read."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from accelerate.strategies.axes.base import Axis
from accelerate.strategies.axes.plan import matches, plan_of, resolved
from accelerate.strategies.axes.select import chained, combined
from accelerate.strategies.fsdp2.public import ensure_weights_retied, fsdp2_switch_optimizer_parameters


class Quiet(Axis):
    """An axis that does nothing."""

    name = "quiet"

    def __init__(self) -> None:
        pass

    def prepare_model(self, model: nn.Module) -> nn.Module:
        return model


class Loud(Quiet):
    """An axis that notes its backward passes, and doubles norms."""

    name = "loud"

    def __init__(self, notes: list[str], name: str) -> None:
        self.notes, self.called = notes, name

    def backward(self, loss: torch.Tensor, compute: Any, **kwargs: Any) -> None:
        self.notes.append(self.called)
        compute(loss, **kwargs)

    def total_norm(self, norm: torch.Tensor, norm_type: float) -> torch.Tensor:
        return norm * 2


def test_an_axis_without_a_backward_pass_of_its_own_costs_nothing():
    def compute(loss):
        raise AssertionError

    assert chained((Quiet(), Quiet()), compute) is compute


def test_backward_passes_go_through_axes_in_order():
    notes: list[Any] = []
    compute = chained((Loud(notes, "one"), Quiet(), Loud(notes, "two")), lambda loss, **kwargs: notes.append(kwargs))
    compute(torch.zeros(()), retain_graph=True)
    assert notes == ["one", "two", {"retain_graph": True}]


def test_norms_are_combined():
    assert combined((Loud([], "one"), Quiet(), Loud([], "two")), 2)(torch.tensor(3.0)) == 12


@pytest.mark.parametrize(
    ("name", "pattern", "expected"),
    [
        ("layers.0.up", "layers.*.up", True),
        ("layers.0.mlp.up", "layers.*.up", False),
        ("layers.0.up", "layers.[01].u*", True),
        ("layers.0", "layers.*.up", False),
        ("head", "head", True),
    ],
)
def test_patterns(name, pattern, expected):
    assert matches(name, pattern) is expected


def test_a_later_pattern_wins_and_modules_keep_their_order():
    model = nn.ModuleDict({"a": nn.Linear(2, 2), "b": nn.Embedding(2, 2)})
    found = resolved(model, {"b": "rowwise", "*": "colwise", "a": "rowwise"})
    assert list(found) == ["a", "b"]
    assert [type(style).__name__ for style in found.values()] == ["RowwiseParallel", "ColwiseParallel"]


def test_the_plan_of_a_model():
    model = nn.Linear(2, 2)
    with pytest.raises(ValueError, match="plan"):
        plan_of(model, None)
    model.tp_plan = {"head": "colwise"}
    assert plan_of(model, None) == {"head": "colwise"}
    assert plan_of(model, {"a": "rowwise"}) == {"a": "rowwise"}


def test_optimizers_are_pointed_at_new_parameters_by_address():
    old, new = nn.Linear(2, 2), nn.Linear(2, 2)
    optimizer = torch.optim.SGD(old.parameters(), lr=0.1)
    pairs = zip(old.parameters(), new.parameters(), strict=True)
    mapping: dict[int, Any] = {one.data_ptr(): two for one, two in pairs}
    fsdp2_switch_optimizer_parameters(optimizer, mapping)
    assert [id(each) for each in optimizer.param_groups[0]["params"]] == [id(each) for each in new.parameters()]
    with pytest.raises(KeyError, match="parameter 0"):
        fsdp2_switch_optimizer_parameters(optimizer, {})


def test_tied_parameters_are_one_again_after_materialising():
    with torch.device("meta"):
        model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3), nn.Linear(3, 3))
        model[2].weight = model[0].weight
    init = ensure_weights_retied(lambda module: module.to_empty(device="cpu", recurse=False), model, "cpu")
    for module in model:
        init(module)
    assert model[2].weight is model[0].weight
    assert model[1].weight is not model[0].weight
    assert not any(parameter.is_meta for parameter in model.parameters())
