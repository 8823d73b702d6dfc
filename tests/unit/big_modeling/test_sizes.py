"""The bytes of the parts of a model, and which parameters have several names."""

from __future__ import annotations

import logging

import pytest
import torch
from torch import nn

from accelerate.big_modeling.parts import fallback_allocate, get_module_size_with_ties
from accelerate.big_modeling.sizes import (
    calculate_maximum_sizes,
    compute_module_sizes,
    compute_module_total_buffer_size,
    get_max_layer_size,
    get_module_leaves,
)
from accelerate.big_modeling.tied import (
    check_tied_parameters_in_config,
    check_tied_parameters_on_same_device,
    device_of_name,
    find_tied_parameters,
    retie_parameters,
)
from accelerate.config.enums import CustomDtype


class Block(nn.Module):
    """Everything that counts: layers, a parameter, integers, and buffers of both kinds."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 3)
        self.norm = nn.BatchNorm1d(3)
        self.scale = nn.Parameter(torch.ones(7))
        self.index = nn.Parameter(torch.ones(2, dtype=torch.int64), requires_grad=False)
        self.register_buffer("extra", torch.ones(5), persistent=False)


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(2, 2)
        self.b = nn.Linear(2, 2)
        self.c = nn.Linear(2, 2)
        self.c.weight = self.a.weight
        self.again = nn.Sequential(self.b)


def model() -> nn.Module:
    return nn.Sequential(Block(), nn.Linear(2, 2))


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, {"": 180, "0": 156, "0.layer": 36, "0.layer.weight": 24, "0.norm": 56, "0.index": 16, "0.extra": 20}),
        ({"dtype": torch.float16}, {"": 102, "0.layer": 18, "0.index": 16, "0.norm.num_batches_tracked": 8}),
        ({"dtype": "float16"}, {"": 102}),
        ({"dtype": torch.float64}, {"": 180}),
        ({"dtype": CustomDtype.INT4}, {"": 43.5, "0.index": 16}),
        ({"special_dtypes": {"0.layer.weight": torch.float64, "1.weight": "int8"}}, {"": 192, "1": 12}),
        ({"dtype": "float16", "special_dtypes": {"1.weight": torch.float32}}, {"1": 20}),
        ({"buffers_only": True}, {"": 52, "0.norm": 32, "0.extra": 20}),
    ],
    ids=str,
)
def test_sizes_of_modules(options: dict, expected: dict[str, float]) -> None:
    sizes = compute_module_sizes(model(), **options)
    assert {name: sizes[name] for name in expected} == expected


def test_a_parameter_with_several_names_counts_once() -> None:
    sizes = compute_module_sizes(Tied())
    assert sizes[""] == 24 + 24 + 8
    assert (sizes["a"], sizes["c"]) == (24, 8)


def test_sums_over_a_model() -> None:
    sizes = compute_module_sizes(model())
    assert compute_module_total_buffer_size(model()) == 52
    assert compute_module_total_buffer_size(nn.Linear(1, 1)) == 0
    assert get_module_leaves(sizes)[:3] == ["0.scale", "0.index", "0.layer.weight"]
    assert calculate_maximum_sizes(model()) == (180, (56, ["0.norm"]))


@pytest.mark.parametrize(
    ("whole", "expected"), [([], (56, ["0.norm"])), (["Block"], (156, ["0"])), ("Block", (156, ["0"]))], ids=str
)
def test_the_largest_layer(whole: list[str] | str, expected: tuple) -> None:
    sizes = compute_module_sizes(model())
    assert get_max_layer_size(list(model().named_children()), sizes, whole) == expected
    assert get_max_layer_size([("", model())], sizes, whole) == expected
    assert get_max_layer_size([], sizes, whole) == (0, [])


def test_a_parameter_can_be_the_largest_layer_and_several_can() -> None:
    class Bare(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Parameter(torch.ones(9)), nn.Parameter(torch.ones(9))
            self.layer = nn.Linear(2, 2)

    wrapped = nn.Sequential(Bare())
    found = get_max_layer_size(list(wrapped.named_children()), compute_module_sizes(wrapped), None)
    assert found == (36, ["0.first", "0.second"])


def test_names_of_one_parameter() -> None:
    assert find_tied_parameters(Tied()) == [
        ["a.weight", "c.weight"],
        ["again.0.weight", "b.weight"],
        ["again.0.bias", "b.bias"],
    ]
    assert find_tied_parameters(nn.Sequential(nn.Linear(1, 1, device="meta"), nn.Linear(1, 1, device="meta"))) == []


def test_tying_again() -> None:
    tied = Tied()
    tied.a.weight = nn.Parameter(tied.a.weight.to("meta"))
    tied.c.weight = nn.Parameter(torch.ones(2, 2))
    retie_parameters(tied, [["a.weight", "c.weight"]])
    assert tied.a.weight is tied.c.weight
    assert tied.a.weight.sum() == 4
    everything_on_meta = Tied().to("meta")
    retie_parameters(everything_on_meta, [["a.weight", "b.weight"]])
    assert everything_on_meta.a.weight is not everything_on_meta.b.weight


def test_devices_of_names() -> None:
    assert device_of_name("a.b.c", {"a.b": 1, "": 2}) == 1
    assert device_of_name("a.b.c", {"": 2}) == 2
    with pytest.raises(ValueError, match="has no entry for"):
        device_of_name("a.b", {"b": 1})


def test_tied_parameters_on_several_devices_are_named(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        check_tied_parameters_on_same_device([["a.w", "b.w"]], {"a": 0, "b": 0})
        assert not caplog.records
        check_tied_parameters_on_same_device([["a.w", "b.w"]], {"a": 0, "b": 1})
    assert "{'a.w': 0, 'b.w': 1}" in caplog.text


def test_what_a_configuration_says_of_ties() -> None:
    class Config:
        tie_word_embeddings = True
        is_encoder_decoder = False

    class Language(nn.Module):
        config = Config()

        def get_output_embeddings(self) -> object:
            return self

    assert check_tied_parameters_in_config(Language())
    assert not check_tied_parameters_in_config(nn.Linear(1, 1))


def test_sizes_with_what_is_tied() -> None:
    parts = list(model().named_children())
    sizes = {"0": 80, "0.x": 64, "1": 16, "1.weight": 16}
    assert get_module_size_with_ties([], 40, sizes, parts) == (40, [], [])
    size, names, modules = get_module_size_with_ties(["1.weight", "0.x"], 40, sizes, parts)
    assert (size, names) == (56, ["1", "0"])
    assert modules == [parts[1][1], parts[0][1]]
    with pytest.raises(ValueError, match="none of the parts"):
        get_module_size_with_ties(["other"], 40, sizes, parts)


@pytest.mark.parametrize(
    ("limit", "whole", "name", "left"),
    [
        (156, None, "0", ["1"]),
        (100, None, "0.layer", ["0.norm", "1"]),
        (100, ["Block"], "1", ["0"]),
        (30, None, "1", ["0"]),
        (3, None, None, ["0", "1"]),
    ],
)
def test_something_that_fits(limit: int, whole: list[str] | None, name: str | None, left: list[str]) -> None:
    parts = list(model().named_children())
    found, module, others = fallback_allocate(parts, compute_module_sizes(model()), limit, whole, [])
    assert found == name
    assert (module is None) is (name is None)
    assert [each for each, _ in others] == left


def test_something_that_fits_counts_what_is_tied_to_it() -> None:
    parts, sizes = [("a", nn.Linear(1, 1)), ("b", nn.Linear(1, 1)), ("c", nn.Linear(1, 1))], {"a": 8, "b": 90, "c": 9}
    found, _, _ = fallback_allocate(parts, sizes, 20, None, [["a.weight", "b.weight"]])
    assert found == "c"
