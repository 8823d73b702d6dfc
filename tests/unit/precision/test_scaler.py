"""Loss scaling, compared with what torch prescribes for one loop and with the same loop unscaled."""

from __future__ import annotations

import copy

import pytest
import torch

from accelerate.config.scaler import GradScalerKwargs
from accelerate.precision.base import PrecisionOptions
from accelerate.precision.scaler import Scaled, has_gradients
from accelerate.precision.select import select_precision

CPU = torch.device("cpu")
OPTIMIZERS = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.1),
    "adam": lambda parameters: torch.optim.AdamW(parameters, lr=0.1),
    "fused": lambda parameters: torch.optim.AdamW(parameters, lr=0.1, fused=True),
}


def scaled(**settings) -> Scaled:
    """Return loss scaling without autocast: with powers of two its results are exactly those without scaling."""
    return Scaled(CPU, PrecisionOptions(scaler=GradScalerKwargs(**settings)))


def weight(value: float = 1.0) -> torch.nn.Parameter:
    return torch.nn.Parameter(torch.tensor([value, -value]))


def watched(precision: Scaled, parameter: torch.nn.Parameter, kind: str = "sgd") -> torch.optim.Optimizer:
    optimizer = OPTIMIZERS[kind]([parameter])
    precision.watch(optimizer)
    return optimizer


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_an_overflow_skips_the_update_and_lowers_the_scale(kind):
    precision = scaled(init_scale=1024.0)
    parameter = weight()
    optimizer = watched(precision, parameter, kind)
    seen = []
    for factor in (1.0, torch.inf, 1.0):
        before = parameter.detach().clone()
        precision.backward((parameter * factor).sum())
        _, skipped = precision.step(optimizer)
        optimizer.zero_grad()
        seen.append((skipped, torch.equal(parameter, before), precision.scaler.get_scale()))
    assert seen == [(False, False, 1024.0), (True, True, 512.0), (False, False, 512.0)]


@pytest.mark.parametrize("kind", OPTIMIZERS)
@pytest.mark.parametrize("clip", [False, True])
def test_updates_are_those_without_scaling(kind, clip):
    precision = scaled(init_scale=64.0, growth_interval=2)
    ours, plain = weight(), weight()
    optimizer, reference = watched(precision, ours, kind), OPTIMIZERS[kind]([plain])
    for step in range(5):
        precision.backward((ours**2).sum() * (step + 1))
        ((plain**2).sum() * (step + 1)).backward()
        if clip:
            precision.unscale([optimizer])
            precision.unscale([optimizer])
            assert torch.equal(
                torch.nn.utils.clip_grad_norm_([ours], 0.5), torch.nn.utils.clip_grad_norm_([plain], 0.5)
            )
        assert precision.step(optimizer) == (None, False)
        reference.step()
        optimizer.zero_grad()
        reference.zero_grad()
    assert torch.equal(ours, plain)
    assert precision.scaler.get_scale() == 64.0 * 4


@pytest.mark.parametrize("overflow_in", [None, 0, 1])
@pytest.mark.parametrize("clip", [False, True])
@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_two_optimizers_of_one_loss_are_as_torch_prescribes(kind, clip, overflow_in):
    precision = scaled(init_scale=64.0, growth_interval=2)
    ours = [weight(1.0), weight(2.0)]
    theirs = copy.deepcopy(ours)
    optimizers = [watched(precision, parameter, kind) for parameter in ours]
    references = [OPTIMIZERS[kind]([parameter]) for parameter in theirs]
    scaler = torch.amp.GradScaler("cpu", init_scale=64.0, growth_interval=2)
    for step in range(6):
        factors = [torch.inf if step == 3 and index == overflow_in else 1.0 for index in range(2)]
        precision.backward(_loss(ours, factors))
        scaler.scale(_loss(theirs, factors)).backward()
        if clip:
            precision.unscale(optimizers)
            torch.nn.utils.clip_grad_norm_(ours[:1], 0.5)
            for reference in references:
                scaler.unscale_(reference)
            torch.nn.utils.clip_grad_norm_(theirs[:1], 0.5)
        skipped = [precision.step(optimizer)[1] for optimizer in optimizers]
        for reference in references:
            scaler.step(reference)
        scaler.update()
        for optimizer in (*optimizers, *references):
            optimizer.zero_grad()
        assert skipped == [factor != 1.0 for factor in factors]
        assert precision.scaler.get_scale() == scaler.get_scale()
    assert all(map(torch.equal, ours, theirs))


def _loss(parameters: list[torch.nn.Parameter], factors: list[float]) -> torch.Tensor:
    return sum((parameter**2 * factor).sum() for parameter, factor in zip(parameters, factors, strict=True))


def test_the_scale_waits_for_an_optimizer_that_was_unscaled_for_clipping():
    precision = scaled(init_scale=64.0, growth_interval=1)
    first, second = weight(), weight()
    optimizers = [watched(precision, each) for each in (first, second)]
    precision.backward((first + second).sum())
    precision.unscale(optimizers)
    precision.step(optimizers[0])
    assert precision.scaler.get_scale() == 64.0
    precision.step(optimizers[1])
    assert precision.scaler.get_scale() == 128.0
    assert torch.equal(second, first)


def test_only_the_given_optimizers_are_unscaled():
    precision = scaled(init_scale=64.0)
    first, second = weight(), weight()
    optimizers = [watched(precision, each) for each in (first, second)]
    precision.backward((first + second).sum())
    precision.unscale(optimizers[:1])
    assert (first.grad[0].item(), second.grad[0].item()) == (1.0, 64.0)


def test_an_optimizer_that_accumulates_longer_gets_its_true_gradients():
    precision = scaled(init_scale=64.0, growth_interval=1)
    often, seldom = weight(), weight()
    frequent, rare = watched(precision, often), watched(precision, seldom)
    for _ in range(4):
        precision.backward((often + seldom).sum())
        precision.step(frequent)
        frequent.zero_grad()
    precision.unscale([rare])
    assert seldom.grad.tolist() == [4.0, 4.0]
    torch.testing.assert_close(often.detach(), torch.tensor([0.6, -1.4]))


def test_leftover_gradients_of_another_optimizer_do_not_hold_the_scale_for_ever():
    precision = scaled(init_scale=64.0)
    trained, idle = weight(), weight()
    optimizer, _never_stepped = watched(precision, trained), watched(precision, idle)
    for _ in range(6):
        precision.backward((trained * torch.inf + idle).sum())
        assert precision.step(optimizer)[1]
        optimizer.zero_grad()
    assert precision.scaler.get_scale() < 64.0


def test_unscaled_gradients_that_were_thrown_away_do_not_vouch_for_the_next():
    precision = scaled(init_scale=64.0)
    parameter = weight()
    optimizer = watched(precision, parameter)
    precision.backward(parameter.sum())
    precision.unscale([optimizer])
    optimizer.zero_grad()
    precision.backward(parameter.sum())
    precision.unscale([optimizer])
    assert parameter.grad.tolist() == [1.0, 1.0]


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_gradients_can_be_clipped_at_every_micro_batch(kind):
    precision = scaled(init_scale=64.0)
    ours, plain = weight(), weight()
    optimizer, reference = watched(precision, ours, kind), OPTIMIZERS[kind]([plain])
    for step in range(6):
        precision.backward((ours**2).sum())
        (plain**2).sum().backward()
        precision.unscale([optimizer])
        norms = [torch.nn.utils.clip_grad_norm_([each], 0.5) for each in (ours, plain)]
        assert torch.equal(*norms)
        if step % 3 == 2:
            precision.step(optimizer)
            reference.step()
            optimizer.zero_grad()
            reference.zero_grad()
    assert torch.equal(ours, plain)


def test_a_backward_pass_of_another_model_between_clipping_and_stepping_changes_nothing():
    precision = scaled(init_scale=64.0)
    first, second = weight(), weight()
    optimizers = [watched(precision, each) for each in (first, second)]
    precision.backward((first * 3).sum())
    precision.unscale(optimizers[:1])
    torch.nn.utils.clip_grad_norm_([first], 1.0)
    precision.backward(second.sum())
    for optimizer in optimizers:
        precision.step(optimizer)
    torch.testing.assert_close(first.detach(), torch.tensor([1.0, -1.0]) - 0.1 / 2**0.5)
    torch.testing.assert_close(second.detach(), torch.tensor([0.9, -1.1]))


def test_an_optimizer_without_gradients_does_nothing():
    precision = scaled()
    parameter = weight()
    optimizer = watched(precision, parameter)
    precision.unscale([optimizer])
    assert not has_gradients(optimizer)
    assert precision.step(optimizer) == (None, False)
    assert torch.equal(parameter, weight())


def test_a_prepared_optimizer_stands_for_the_one_inside():
    class Prepared:
        def __init__(self, optimizer):
            self.optimizer = optimizer

    precision = scaled(init_scale=64.0)
    parameter = weight()
    optimizer = watched(precision, parameter)
    precision.backward(parameter.sum())
    precision.unscale([Prepared(optimizer)])
    precision.unscale([optimizer])
    assert parameter.grad.tolist() == [1.0, 1.0]


@pytest.mark.parametrize("scaler", [None, torch.amp.GradScaler("cpu", enabled=False)])
def test_without_a_scaler_nothing_is_scaled(scaler):
    precision = scaled()
    precision.scaler = scaler
    parameter = weight()
    optimizer = watched(precision, parameter)
    precision.backward(parameter.sum())
    precision.unscale([optimizer])
    assert parameter.grad.tolist() == [1.0, 1.0]
    assert precision.step(optimizer) == (None, False)


def test_a_replaced_scaler_is_used():
    precision = scaled(init_scale=64.0)
    precision.scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    parameter = weight()
    precision.backward(parameter.sum())
    assert parameter.grad.tolist() == [4.0, 4.0]


def test_a_closure_is_refused_by_name():
    precision = scaled()
    parameter = weight()
    optimizer = watched(precision, parameter)
    precision.backward(parameter.sum())
    with pytest.raises(RuntimeError, match="closure"):
        precision.step(optimizer, lambda: None)


@pytest.mark.parametrize("name", ["no", "bf16", "fp16"])
def test_a_loop_in_any_precision_trains(name):
    torch.manual_seed(0)
    precision = select_precision(name, CPU)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
    precision.prepare_model(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    precision.watch(optimizer)
    inputs = torch.randn(32, 4)
    losses = []
    for _ in range(30):
        loss = torch.nn.functional.mse_loss(model(inputs), inputs.sum(1, keepdim=True))
        precision.backward(loss)
        precision.step(optimizer)
        optimizer.zero_grad()
        losses.append(loss.item())
    assert losses[-1] < losses[0] / 10
