"""Optimizers follow their parameters by name."""

from __future__ import annotations

import copy
import gc
import weakref

import pytest
import torch
from torch import nn

from accelerate.strategies.relink import canonical_name, relinked


def trained():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))
    optimizer = torch.optim.AdamW([{"params": model[0].parameters()}, {"params": model[1].parameters(), "lr": 0.5}])
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    return model, optimizer


@pytest.mark.parametrize("release", [False, True])
def test_groups_and_state_move_to_the_parameters_of_the_same_name(release):
    model, optimizer = trained()
    averages = [optimizer.state[parameter]["exp_avg"].clone() for parameter in model.parameters()]
    with relinked([model], [optimizer], release=release) as models:
        models[0] = model = copy.deepcopy(model)
    assert [[id(p) for p in group["params"]] for group in optimizer.param_groups] == [
        [id(p) for p in layer.parameters()] for layer in model
    ]
    assert [group["lr"] for group in optimizer.param_groups] == [1e-3, 0.5]
    assert list(optimizer.state) == list(model.parameters())
    for parameter, average in zip(model.parameters(), averages, strict=True):
        assert torch.equal(optimizer.state[parameter]["exp_avg"], average)


def test_wrappers_do_not_hide_a_name():
    model, optimizer = trained()
    with relinked([model], [optimizer]) as models:
        models[0] = torch.nn.DataParallel(copy.deepcopy(model))
    assert optimizer.param_groups[0]["params"][0] is models[0].module[0].weight


def test_release_frees_the_old_parameters_during_the_body():
    model, optimizer = trained()
    old = weakref.ref(model[0].weight)
    with relinked([model], [optimizer], release=True) as models:
        fresh = copy.deepcopy(model)
        models[0] = fresh
        del model
        gc.collect()
        assert old() is None
    assert optimizer.param_groups[0]["params"][0] is fresh[0].weight


def test_parameters_of_no_model_stay():
    model, _ = trained()
    loose = nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([loose, *model.parameters()], lr=1.0)
    with relinked([model], [optimizer], release=True) as models:
        models[0] = copy.deepcopy(model)
    assert optimizer.param_groups[0]["params"][0] is loose
    assert optimizer.param_groups[0]["params"][1] is models[0][0].weight


def test_a_parameter_without_successor_is_named():
    model, optimizer = trained()
    with pytest.raises(RuntimeError, match="an optimizer that holds the parameter '1.weight'"):
        with relinked([model], [optimizer]) as models:
            models[0] = nn.Sequential(nn.Linear(2, 2))


def test_when_the_body_raises_the_optimizer_keeps_what_it_had():
    model, optimizer = trained()
    with pytest.raises(KeyError):
        with relinked([model], [optimizer]):
            raise KeyError
    assert optimizer.param_groups[0]["params"][0] is model[0].weight


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("module.layer.weight", "layer.weight"),
        ("_orig_mod.module.layer.weight", "layer.weight"),
        ("layer._fsdp_wrapped_module._checkpoint_wrapped_module.weight", "layer.weight"),
        ("my_module.weight", "my_module.weight"),
    ],
)
def test_canonical_names(name, expected):
    assert canonical_name(name) == expected
