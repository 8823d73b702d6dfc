"""Weights and inputs on the device where a module runs: what is where, before, during and after a forward."""

from __future__ import annotations

import copy
import gc
import threading

import pytest
import torch

from accelerate.hooks import AlignDevicesHook, add_hook_to_module, remove_hook_from_module
from accelerate.hooks.aligned import align_module_device, has_offloaded_params
from accelerate.hooks.transfer import device_of, to_device
from accelerate.hooks.weights import PrefixedDataset
from tests.unit.hooks.models import Block, devices

INPUT = torch.ones(1, 4)


class Seen(torch.nn.Linear):
    """Remembers where its weights were when it ran."""

    def forward(self, value: torch.Tensor, fail: bool = False) -> torch.Tensor:
        self.seen = (type(self.weight), self.weight.device.type, self.weight.data_ptr())
        if fail:
            raise ValueError("asked to")
        return super().forward(value)


def offloaded(module: torch.nn.Module, **options) -> AlignDevicesHook:
    """Put an offloading hook on a module and return it."""
    hook = AlignDevicesHook(execution_device="cpu", offload=True, **options)
    add_hook_to_module(module, hook)
    return hook


def test_weights_are_there_for_the_forward_only() -> None:
    layer = Seen(4, 4)
    weight, expected = layer.weight, layer(INPUT)
    hook = offloaded(layer)
    assert set(devices(layer).values()) == {"meta"}
    assert layer.weight.requires_grad
    assert torch.equal(layer(INPUT), expected)
    assert layer.seen == (torch.nn.Parameter, "cpu", weight.data_ptr())
    assert set(devices(layer).values()) == {"meta"}
    assert hook.original_devices == {"weight": torch.device("cpu"), "bias": torch.device("cpu")}
    assert sorted(hook.weights_map) == ["bias", "weight"]


def test_removing_the_hook_brings_the_weights_back() -> None:
    layer = torch.nn.Linear(4, 4)
    weight, expected = layer.weight, layer(INPUT)
    offloaded(layer)
    remove_hook_from_module(layer)
    assert layer.weight.data_ptr() == weight.data_ptr()
    assert torch.equal(layer(INPUT), expected)


def test_what_was_on_meta_stays_there() -> None:
    layer, weights = torch.nn.Linear(4, 4, device="meta"), dict(torch.nn.Linear(4, 4).state_dict())
    offloaded(layer, weights_map=weights)
    assert torch.equal(layer(INPUT), torch.nn.functional.linear(INPUT, weights["weight"], weights["bias"]))
    remove_hook_from_module(layer)
    assert set(devices(layer).values()) == {"meta"}


@pytest.mark.parametrize(
    ("offload_buffers", "there"), [(False, {"running_mean", "extra"}), (True, {"extra"})], ids=["stay", "go"]
)
def test_buffers(offload_buffers: bool, there: set[str]) -> None:
    norm = torch.nn.BatchNorm1d(4).eval()
    norm.register_buffer("extra", torch.ones(1), persistent=False)
    expected = norm(INPUT)
    offloaded(norm, offload_buffers=offload_buffers)
    assert {name for name in ("running_mean", "extra") if devices(norm)[name] == "cpu"} == there
    assert torch.equal(norm(INPUT), expected)
    assert {name for name in ("running_mean", "extra") if devices(norm)[name] == "cpu"} == there


def test_everything_inside_comes_at_once() -> None:
    block = Block()
    expected = block(INPUT)
    offloaded(block, place_submodules=True)
    assert devices(block)["first.weight"] == devices(block)["scale"] == "meta"
    assert devices(block)["shift"] == "cpu"
    assert torch.equal(block(INPUT), expected)
    assert devices(block)["first.weight"] == "meta"


def test_weights_tied_inside_a_module_come_under_both_names() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4))
    model[1].weight = model[0].weight
    expected = model(INPUT)
    offloaded(model, place_submodules=True)
    assert torch.equal(model(INPUT), expected)
    assert set(devices(model).values()) == {"meta"}


def test_a_forward_that_fails_leaves_no_weights_behind() -> None:
    layer = Seen(4, 4)
    offloaded(layer)
    with pytest.raises(ValueError, match="asked to"):
        layer(INPUT, fail=True)
    assert set(devices(layer).values()) == {"meta"}
    layer(INPUT)


def test_weights_that_cannot_be_brought_in_are_an_error_and_leave_nothing() -> None:
    layer = torch.nn.Linear(4, 4)
    hook = offloaded(layer)
    hook.weights_map = {"weight": torch.ones(4, 4)}
    with pytest.raises(KeyError, match="bias"):
        layer(INPUT)
    assert set(devices(layer).values()) == {"meta"}


def test_a_weights_map_can_be_replaced() -> None:
    layer = torch.nn.Linear(4, 4)
    hook = offloaded(layer)
    layer(INPUT)
    hook.weights_map = {"weight": torch.zeros(4, 4), "bias": torch.ones(4)}
    assert layer(INPUT).tolist() == [[1, 1, 1, 1]]


def test_hooks_can_be_called_by_hand() -> None:
    layer = torch.nn.Linear(4, 4)
    hook = offloaded(layer)
    assert hook.pre_forward(layer) == ((), {})
    layer.weight.data += 1
    hook.weights_map = {name: parameter.to("cpu") for name, parameter in layer.named_parameters()}
    hook.post_forward(layer, torch.tensor([]))
    assert set(devices(layer).values()) == {"meta"}
    changed = hook.weights_map["weight"]
    assert torch.equal(layer(INPUT), torch.nn.functional.linear(INPUT, changed, hook.weights_map["bias"]))


def test_a_call_by_hand_without_its_end_does_not_stop_the_next_forward_from_cleaning_up() -> None:
    layer = torch.nn.Linear(4, 4)
    hook = offloaded(layer)
    hook.pre_forward(layer)
    layer(INPUT)
    assert set(devices(layer).values()) == {"meta"}


def test_placeholders_say_the_dtype() -> None:
    layer = torch.nn.Linear(4, 4, dtype=torch.bfloat16, device="meta")
    offloaded(layer, weights_map=dict(torch.nn.Linear(4, 4).state_dict()))
    assert layer(INPUT.bfloat16()).dtype is torch.bfloat16
    layer.weight = torch.nn.Parameter(layer.weight.float(), requires_grad=False)
    layer.bias = torch.nn.Parameter(layer.bias.float(), requires_grad=False)
    assert layer(INPUT).dtype is torch.float32
    assert not layer(INPUT).requires_grad


def test_requiring_gradients_can_change_between_forwards() -> None:
    layer = torch.nn.Linear(4, 4)
    offloaded(layer)
    assert layer(INPUT).requires_grad
    layer.requires_grad_(False)
    assert not layer(INPUT).requires_grad
    layer.requires_grad_(True)
    assert layer(INPUT).requires_grad


def test_gradients_flow_through_offloaded_weights() -> None:
    layer = torch.nn.Linear(4, 4)
    given = INPUT.clone().requires_grad_()
    layer(given).sum().backward()
    expected, given.grad = given.grad, None
    offloaded(layer)
    layer(given).sum().backward()
    assert torch.equal(given.grad, expected)


def test_one_hook_moves_to_another_module() -> None:
    layer = torch.nn.Linear(4, 4)
    hook = offloaded(layer)
    bigger = torch.nn.Linear(4, 6)
    expected = bigger(INPUT)
    add_hook_to_module(bigger, hook)
    assert torch.equal(bigger(INPUT), expected)


def test_several_threads_run_one_module() -> None:
    class Meeting(torch.nn.Linear):
        """Waits inside its forward until all threads are in it, and leaves one by one."""

        def forward(self, value: torch.Tensor) -> torch.Tensor:
            barrier.wait(timeout=20)
            with order:
                return super().forward(value)

    barrier, order = threading.Barrier(3), threading.Lock()
    layer = Meeting(4, 4)
    expected = torch.nn.functional.linear(INPUT, layer.weight, layer.bias)
    offloaded(layer)
    results: list[torch.Tensor] = []
    threads = [threading.Thread(target=lambda: results.append(layer(INPUT))) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=30)
    assert len(results) == 3
    assert all(torch.equal(each, expected) for each in results)
    assert set(devices(layer).values()) == {"meta"}


def test_a_copy_has_its_own_weights_in_its_own_places() -> None:
    layer = torch.nn.Linear(4, 4)
    expected = layer(INPUT)
    offloaded(layer)
    twin = copy.deepcopy(layer)
    assert torch.equal(twin(INPUT), expected)
    assert set(devices(twin).values()) == set(devices(layer).values()) == {"meta"}


def test_a_mapping_that_makes_its_tensors_is_not_kept_from_freeing_them() -> None:
    made: list = []

    class Made(dict):
        def __getitem__(self, key: str) -> torch.Tensor:
            made.append(key)
            return torch.ones(4, 4) if key == "weight" else torch.ones(4)

    class Lazy(PrefixedDataset):
        pass

    layer = torch.nn.Linear(4, 4)
    offloaded(layer, weights_map=Lazy(Made(weight=None, bias=None), ""))
    layer(INPUT)
    layer(INPUT)
    assert made == ["weight", "bias"] * 2


def test_inputs_and_outputs_come_back_to_where_they_were() -> None:
    hook = AlignDevicesHook(execution_device="meta", io_same_device=True)
    layer = add_hook_to_module(torch.nn.Linear(4, 4), hook)
    assert set(devices(layer).values()) == {"meta"}
    with pytest.raises(NotImplementedError, match="meta"):
        layer(INPUT)
    assert hook.input_device == torch.device("cpu")


@pytest.mark.parametrize("skip", ["cache", ["cache"]])
def test_named_inputs_can_stay_where_they_are(skip: str | list[str]) -> None:
    class Takes(torch.nn.Module):
        def forward(self, value: torch.Tensor, cache: torch.Tensor, other: dict) -> list[str]:
            return [value.device.type, cache.device.type, other["deep"].device.type, other["cache"].device.type]

    module = add_hook_to_module(Takes(), AlignDevicesHook(execution_device="meta", skip_keys=skip))
    said = module(INPUT, cache=INPUT, other={"deep": INPUT, "cache": INPUT})
    assert said == ["meta", "cpu", "meta", "cpu"]


def test_an_execution_device_can_be_reassigned() -> None:
    hook = AlignDevicesHook(execution_device="cpu")
    module = add_hook_to_module(torch.nn.Identity(), hook)
    hook.execution_device = "meta"
    assert module(INPUT).device.type == "meta"
    hook.execution_device = None
    assert module(INPUT).device.type == "cpu"


@pytest.mark.parametrize(
    "data",
    [
        INPUT,
        (INPUT, 1, None),
        [INPUT, {"a": INPUT, "b": "text"}],
        {"a": (INPUT, 2.5)},
        torch.nn.utils.rnn.pack_sequence([torch.ones(2)]),
    ],
    ids=["tensor", "tuple", "list", "dict", "packed"],
)
def test_nested_data_moves(data: object) -> None:
    assert device_of(data) == torch.device("cpu")
    moved = to_device(data, torch.device("meta"))
    assert type(moved) is type(data)
    assert device_of(moved) == torch.device("meta")


def test_the_device_of_nothing() -> None:
    assert device_of({"a": [1, None, "x"], "b": ()}) is None


def test_a_hook_says_what_it_does() -> None:
    assert repr(AlignDevicesHook(execution_device=0, skip_keys="cache")) == (
        "AlignDevicesHook(execution_device=0, offload=False, io_same_device=False, offload_buffers=False, "
        "place_submodules=False, skip_keys='cache')"
    )


def test_weights_can_be_looked_at_outside_of_a_forward() -> None:
    layer = torch.nn.Linear(4, 4)
    weight = layer.weight.detach().clone()
    assert not has_offloaded_params(layer)
    offloaded(layer)
    assert has_offloaded_params(layer)
    with align_module_device(layer):
        assert torch.equal(layer.weight, weight)
    with pytest.raises(ValueError, match="stop"), align_module_device(layer, "cpu"):
        raise ValueError("stop")
    assert set(devices(layer).values()) == {"meta"}


def test_weights_of_a_module_without_offloading_can_be_moved_for_a_block() -> None:
    layer = torch.nn.Linear(4, 4)
    weight = layer.weight
    with align_module_device(layer, "meta"):
        assert layer.weight.device.type == "meta"
    assert layer.weight is weight
    with align_module_device(layer, "cpu"):
        assert layer.weight is weight
    with align_module_device(layer):
        assert layer.weight is weight


def test_weights_that_were_dropped_take_no_memory() -> None:
    layer = torch.nn.Linear(4, 4, device="meta")
    weights = dict(torch.nn.Linear(4, 4).state_dict())
    offloaded(layer, weights_map=weights)
    layer(INPUT)
    remove_hook_from_module(layer)
    gc.collect()
    assert set(devices(layer).values()) == {"meta"}
    assert [name for name, value in layer.__dict__.items() if isinstance(value, AlignDevicesHook)] == []
