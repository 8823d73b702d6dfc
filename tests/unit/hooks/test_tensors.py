"""The tensors of a module: their names, and putting one somewhere else or something else in its place."""

from __future__ import annotations

import pytest
import torch

from accelerate.hooks.placement import set_module_tensor_to_device
from accelerate.hooks.tensors import (
    as_device,
    check_device_same,
    get_non_persistent_buffers,
    id_tensor_storage,
    named_module_tensors,
)

META = torch.device("meta")


class Nested(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("own", torch.ones(1), persistent=False)
        self.norm = torch.nn.BatchNorm1d(2)
        self.norm.register_buffer("inner", torch.ones(1), persistent=False)


@pytest.mark.parametrize(
    ("options", "names"),
    [
        ({}, {"own"}),
        ({"remove_non_persistent": True}, set()),
        ({"recurse": True, "include_buffers": False}, {"norm.weight", "norm.bias"}),
        (
            {"recurse": True, "remove_non_persistent": True},
            {"norm.weight", "norm.bias", "norm.running_mean", "norm.running_var", "norm.num_batches_tracked"},
        ),
    ],
)
def test_named_tensors(options: dict, names: set[str]) -> None:
    assert {name for name, _ in named_module_tensors(Nested(), **options)} == names


def test_buffers_that_are_not_in_the_state_dict() -> None:
    assert get_non_persistent_buffers(Nested()) == {"own"}
    assert get_non_persistent_buffers(Nested(), recurse=True) == {"own", "inner"}
    assert get_non_persistent_buffers(Nested(), recurse=True, fqns=True) == {"own", "norm.inner"}


@pytest.mark.parametrize(
    ("first", "second", "same"),
    [
        ("cpu", "cpu", True),
        ("cpu", "cpu:0", True),
        ("cuda", "cuda:0", True),
        ("cuda:1", "cuda:0", False),
        ("cuda", "cuda:1", False),
        ("cpu", "cuda", False),
        ("meta", "meta", True),
    ],
)
def test_same_device(first: str, second: str, same: bool) -> None:
    assert check_device_same(torch.device(first), torch.device(second)) is same


def test_storages_are_told_apart() -> None:
    tensor = torch.ones(4)
    assert id_tensor_storage(tensor) == id_tensor_storage(tensor[:2])
    assert id_tensor_storage(tensor) != id_tensor_storage(tensor.clone())
    one, other = torch.ones(4, device="meta"), torch.ones(4, device="meta")
    assert id_tensor_storage(one) != id_tensor_storage(other)


def test_a_number_is_an_accelerator() -> None:
    assert as_device(1).index == 1
    assert as_device("cpu") == torch.device("cpu")


def test_what_is_there_already_stays_the_same_object() -> None:
    layer = torch.nn.Linear(2, 3)
    weight = layer.weight
    set_module_tensor_to_device(layer, "weight", "cpu")
    assert layer.weight is weight


def test_a_value_takes_the_place_without_a_copy() -> None:
    layer, value = torch.nn.Linear(2, 3), torch.ones(3, 2)
    layer.weight.requires_grad_(False)
    layer.weight.note = "kept"
    set_module_tensor_to_device(layer, "weight", "cpu", value=value)
    assert layer.weight.data_ptr() == value.data_ptr()
    assert isinstance(layer.weight, torch.nn.Parameter)
    assert not layer.weight.requires_grad
    assert layer.weight.note == "kept"


@pytest.mark.parametrize(
    ("value", "dtype", "expected"),
    [
        (torch.ones(3, 2), None, torch.float32),
        (torch.ones(3, 2, dtype=torch.float16), None, torch.float32),
        (torch.ones(3, 2), torch.bfloat16, torch.bfloat16),
        (torch.ones(3, 2, dtype=torch.int8), torch.float16, torch.int8),
        (torch.ones(3, 2, dtype=torch.int8), None, torch.float32),
        (None, torch.float16, torch.float16),
    ],
)
def test_dtypes(value: torch.Tensor | None, dtype: torch.dtype | None, expected: torch.dtype) -> None:
    layer = torch.nn.Linear(2, 3)
    set_module_tensor_to_device(layer, "weight", "cpu", value=value, dtype=dtype)
    assert layer.weight.dtype is expected
    assert layer.weight.requires_grad is expected.is_floating_point


def test_integer_buffers_keep_their_dtype() -> None:
    norm = torch.nn.BatchNorm1d(2)
    set_module_tensor_to_device(norm, "num_batches_tracked", "cpu", value=torch.tensor(70000), dtype=torch.float16)
    assert norm.num_batches_tracked.dtype is torch.int64
    assert norm.num_batches_tracked == 70000


def test_to_meta_and_back() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.BatchNorm1d(3))
    model[0].weight._is_hf_initialized = True
    for name in ("0.weight", "1.running_mean"):
        set_module_tensor_to_device(model, name, "meta")
    assert model[0].weight.device == model[1].running_mean.device == META
    assert model[0].weight._is_hf_initialized
    assert model[0].weight.requires_grad
    set_module_tensor_to_device(model, "0.weight", "cpu", value=torch.ones(3, 2))
    assert model[0].weight._is_hf_initialized
    assert model[0].weight.sum() == 6


def test_gradients_move_with_what_keeps_its_content() -> None:
    layer = torch.nn.Linear(2, 3)
    layer.weight.grad = torch.ones(3, 2)
    set_module_tensor_to_device(layer, "weight", "cpu", dtype=torch.float64)
    assert layer.weight.grad.dtype is torch.float64
    set_module_tensor_to_device(layer, "weight", "cpu", value=torch.ones(3, 2))
    assert layer.weight.grad is None


def test_a_storage_of_several_names_is_placed_once() -> None:
    value = torch.ones(3, 2)
    tied: dict = {value.data_ptr(): {}}
    first, second = torch.nn.Linear(2, 3), torch.nn.Linear(2, 3)
    for layer in (first, second):
        set_module_tensor_to_device(layer, "weight", "cpu", value=value, tied_params_map=tied)
    assert first.weight is second.weight
    assert list(tied[value.data_ptr()]) == [torch.device("cpu")]


def test_scales_go_with_an_int8_weight() -> None:
    layer = torch.nn.Linear(2, 3)
    value = torch.ones(3, 2, dtype=torch.int8)
    set_module_tensor_to_device(
        layer, "weight", "cpu", value=value, dtype=torch.int8, fp16_statistics=torch.full((3,), 2.0)
    )
    assert layer.weight.SCB.tolist() == [2, 2, 2]


@pytest.mark.parametrize(
    ("name", "device", "value", "said"),
    [
        ("wieght", "cpu", None, "Did you mean 'weight'"),
        ("weight", "cpu", torch.ones(2, 2), r"has shape \(2, 2\), and weight has shape \(3, 2\)"),
        ("empty", "cpu", None, "we need a `value`"),
        ("bias", "cpu", torch.ones(3), "bias is None"),
    ],
)
def test_refusals_say_what_is_wrong(name: str, device: str, value: torch.Tensor | None, said: str) -> None:
    layer = torch.nn.Linear(2, 3, bias=False)
    layer.empty = torch.nn.Parameter(torch.ones(1, device="meta"))
    with pytest.raises(ValueError, match=said) as error:
        set_module_tensor_to_device(layer, name, device, value=value)
    assert str(error.value).count("\n") == 3


def test_a_tensor_of_a_module_without_tensors() -> None:
    with pytest.raises(ValueError, match="it has no tensors"):
        set_module_tensor_to_device(torch.nn.ReLU(), "weight", "cpu")
