from __future__ import annotations

import copy
import gc
import pickle
import weakref

import pytest
import torch

from accelerate.optimizer import AcceleratedOptimizer, move_to_device, patch_optimizer_step, place_state
from accelerate.precision.select import select_precision
from accelerate.state.gradient import GradientState, Iteration

CPU = torch.device("cpu")


class Odd(torch.optim.Optimizer):
    """An optimizer whose methods take fewer arguments than torch's; notes the calls."""

    def __init__(self, parameters):
        super().__init__(parameters, {})
        self.calls = []

    def zero_grad(self):
        self.calls.append("zero_grad")

    def step(self):
        self.calls.append("step")

    def train(self):
        self.calls.append("train")

    def eval(self):
        self.calls.append("eval")


def made(kind=torch.optim.SGD, *, options=None, **settings):
    parameter = torch.nn.Parameter(torch.ones(2))
    inner = kind([parameter], **settings) if kind is Odd else kind([parameter], lr=0.5, **settings)
    return parameter, inner, AcceleratedOptimizer(inner, **(options or {}))


def test_it_is_an_optimizer_with_the_groups_state_and_defaults_of_the_one_inside():
    parameter, inner, optimizer = made(momentum=0.9)
    parameter.grad = torch.ones(2)
    optimizer.step()
    assert isinstance(optimizer, torch.optim.Optimizer)
    assert optimizer.optimizer is inner
    assert (optimizer.state, optimizer.param_groups, optimizer.defaults) == (
        inner.state,
        inner.param_groups,
        inner.defaults,
    )
    optimizer.state = {}
    optimizer.param_groups = []
    optimizer.defaults = {"lr": 2}
    assert (inner.state, inner.param_groups, inner.defaults) == ({}, [], {"lr": 2})


def test_groups_and_states_go_to_the_one_inside():
    _, inner, optimizer = made()
    optimizer.add_param_group({"params": [torch.nn.Parameter(torch.ones(1))], "lr": 0.1})
    assert len(inner.param_groups) == 2
    saved = optimizer.state_dict()
    saved["param_groups"][1]["lr"] = 0.7
    optimizer.load_state_dict(saved)
    assert inner.param_groups[1]["lr"] == 0.7


def test_nothing_happens_while_gradients_are_accumulated():
    parameter, _, optimizer = made()
    parameter.grad = torch.ones(2)
    optimizer.gradient_state.sync_gradients = False
    optimizer.step()
    optimizer.zero_grad()
    assert parameter.tolist() == [1, 1]
    assert parameter.grad is not None
    optimizer.gradient_state.sync_gradients = True
    optimizer.step()
    optimizer.zero_grad()
    assert parameter.tolist() == [0.5, 0.5]
    assert parameter.grad is None


def test_a_closure_is_called_and_its_result_returned():
    parameter, _, optimizer = made()

    def closure():
        parameter.grad = torch.ones(2)
        return 3.0

    assert optimizer.step(closure) == 3.0
    assert parameter.tolist() == [0.5, 0.5]


def test_what_must_happen_before_a_step_happens_only_before_a_step():
    calls = []
    parameter, _, optimizer = made(options={"before_step": lambda: calls.append(parameter.tolist())})
    parameter.grad = torch.ones(2)
    optimizer.gradient_state.sync_gradients = False
    optimizer.step()
    optimizer.gradient_state.sync_gradients = True
    optimizer.step()
    assert calls == [[1, 1]]


@pytest.mark.parametrize(("set_to_none", "left"), [(None, None), (True, None), (False, [0, 0])])
def test_gradients_are_cleared_as_asked(set_to_none, left):
    parameter, _, optimizer = made()
    parameter.grad = torch.ones(2)
    optimizer.zero_grad(set_to_none)
    assert (parameter.grad if parameter.grad is None else parameter.grad.tolist()) == left


def test_an_optimizer_with_fewer_arguments_works_and_says_what_it_can_not_do():
    _, inner, optimizer = made(Odd)
    optimizer.zero_grad()
    optimizer.step()
    optimizer.train()
    optimizer.eval()
    assert inner.calls == ["zero_grad", "step", "train", "eval"]
    with pytest.raises(ValueError, match=r"zero_grad\(set_to_none=False\)"):
        optimizer.zero_grad(set_to_none=False)


def test_modes_of_an_optimizer_without_modes_are_nothing():
    _, _, optimizer = made()
    assert (optimizer.train(), optimizer.eval()) == (None, None)


def test_hooks_reach_the_optimizer_inside():
    parameter, _, optimizer = made()
    calls = []
    optimizer.register_step_pre_hook(lambda *_: calls.append("before"))
    optimizer.register_step_post_hook(lambda *_: calls.append("after"))
    parameter.grad = torch.ones(2)
    optimizer.step()
    assert calls == ["before", "after"]


def test_an_unknown_attribute_is_still_an_error():
    _, _, optimizer = made()
    with pytest.raises(AttributeError, match="nowhere"):
        _ = optimizer.nowhere


@pytest.mark.parametrize("on_wrapper", [True, False])
def test_a_scheduler_of_torch_can_be_built_on_either(on_wrapper):
    parameter, inner, optimizer = made()
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer if on_wrapper else inner, lambda step: 1 / (step + 1))
    rates = []
    for _ in range(3):
        parameter.grad = torch.ones(2)
        optimizer.step()
        scheduler.step()
        rates.append(optimizer.param_groups[0]["lr"])
    assert rates == [0.25, 0.5 / 3, 0.125]
    pickle.dumps(optimizer)


def test_a_skipped_update_is_known_for_each_optimizer():
    precision = select_precision("fp16", CPU)
    first, second = (torch.nn.Parameter(torch.ones(2)) for _ in range(2))
    optimizers = [
        AcceleratedOptimizer(torch.optim.AdamW([each], fused=True), precision=precision) for each in (first, second)
    ]
    precision.backward((first * torch.inf + second).sum())
    for optimizer in optimizers:
        optimizer.step()
        optimizer.zero_grad()
    assert [optimizer.step_was_skipped for optimizer in optimizers] == [True, False]
    assert [optimizer._is_overflow for optimizer in optimizers] == [True, False]
    assert [optimizer._accelerate_step_called for optimizer in optimizers] == [False, True]
    precision.backward((first + second).sum())
    optimizers[0].step()
    assert not optimizers[0].step_was_skipped


def test_gradients_that_were_cleared_instead_of_stepped_with_are_forgotten():
    precision = select_precision("fp16", CPU)
    parameter = torch.nn.Parameter(torch.ones(2))
    optimizer = AcceleratedOptimizer(torch.optim.SGD([parameter], lr=1.0), precision=precision)
    for _ in range(2):
        optimizer.zero_grad()
        precision.backward(parameter.sum())
        precision.unscale([optimizer])
        assert parameter.grad.tolist() == [1, 1]


def test_a_scaler_can_be_given_and_replaced_by_hand():
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    parameter, _, optimizer = made(options={"scaler": scaler})
    assert optimizer.scaler is scaler
    scaler.scale((parameter * torch.inf).sum()).backward()
    optimizer.step()
    assert optimizer.step_was_skipped
    assert scaler.get_scale() == 2.0
    optimizer.scaler = None
    assert optimizer.scaler is None
    parameter.grad = torch.ones(2)
    optimizer.step()
    assert parameter.tolist() == [0.5, 0.5]


@pytest.mark.parametrize("name", ["no", "fp16"])
def test_it_pickles_while_a_loader_is_iterated(name):
    class Loader:
        pass

    loader = Loader()
    GradientState().enter(Iteration(loader))
    precision = select_precision(name, CPU)
    parameter, _, optimizer = made(momentum=0.9, options={"precision": precision, "before_step": lambda: None})
    precision.backward(parameter.sum())
    optimizer.step()
    optimizer._is_accelerate_prepared = True
    for twin in (pickle.loads(pickle.dumps(optimizer)), copy.deepcopy(optimizer)):
        assert twin.param_groups[0]["lr"] == 0.5
        assert twin.param_groups[0]["params"][0].tolist() == parameter.tolist()
        assert [list(state) for state in twin.state.values()] == [["momentum_buffer"]]
        assert (twin.scaler is None) is (name == "no")
        assert twin._is_accelerate_prepared
        assert twin.gradient_state.sync_gradients
        twin.zero_grad()
        twin.step()


def test_it_keeps_neither_its_parameters_nor_itself_alive():
    _, _, optimizer = made(options={"precision": select_precision("fp16", CPU)})
    alive = weakref.ref(optimizer)
    del optimizer
    gc.collect()
    assert alive() is None


def test_parameters_can_be_switched():
    parameter, inner, optimizer = made()
    other = torch.nn.Parameter(torch.zeros(1))
    optimizer._switch_parameters({parameter: other})
    assert inner.param_groups[0]["params"] == [other]


def test_a_patched_method_notes_that_it_was_called():
    _, _, optimizer = made()
    patched = patch_optimizer_step(optimizer, lambda value: value + 1)
    optimizer._accelerate_step_called = False
    assert patched(1) == 2
    assert optimizer._accelerate_step_called


def test_tensors_in_containers_are_moved():
    moved = move_to_device({"a": [torch.ones(1)], "b": (torch.ones(1), 3), "c": "text"}, "meta")
    assert (moved["a"][0].device.type, moved["b"][0].device.type, moved["b"][1], moved["c"]) == (
        "meta",
        "meta",
        3,
        "text",
    )


@pytest.mark.parametrize(
    ("settings", "device_of_count"), [({}, "cpu"), ({"capturable": True}, "meta"), ({"fused": True}, "meta")]
)
def test_state_is_placed_next_to_the_device_and_counts_where_the_optimizer_wants_them(settings, device_of_count):
    parameter = torch.nn.Parameter(torch.ones(2))
    optimizer = torch.optim.AdamW([parameter])
    parameter.grad = torch.ones(2)
    optimizer.step()
    optimizer.param_groups[0].update(settings)
    place_state(optimizer, torch.device("meta"))
    devices = {name: tensor.device.type for name, tensor in optimizer.state[parameter].items()}
    assert devices == {"step": device_of_count, "exp_avg": "meta", "exp_avg_sq": "meta"}


@pytest.mark.parametrize("place", [True, False])
def test_state_that_was_there_before_is_placed_when_asked(place, monkeypatch):
    class State:
        device = torch.device("meta")

    monkeypatch.setattr("accelerate.optimizer.PartialState", State)
    parameter = torch.nn.Parameter(torch.ones(2))
    inner = torch.optim.SGD([parameter], lr=0.1, momentum=0.9)
    inner.state[parameter]["momentum_buffer"] = torch.ones(2)
    AcceleratedOptimizer(inner, device_placement=place)
    assert inner.state[parameter]["momentum_buffer"].device.type == ("meta" if place else "cpu")
