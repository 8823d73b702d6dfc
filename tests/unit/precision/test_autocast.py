from __future__ import annotations

import copy
import dataclasses
import functools
import inspect
import pickle
from typing import NamedTuple

import pytest
import torch

from accelerate.config.autocast import AutocastKwargs
from accelerate.precision.autocast import AutocastForward, has_autocast, strip_autocast
from accelerate.precision.select import select_precision

CPU = torch.device("cpu")
INPUT = torch.ones(2, 3)


class Net(torch.nn.Module):
    """One layer; notes in which dtype it computed."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(3, 3)

    def forward(self, input: torch.Tensor, *, double: bool = False) -> torch.Tensor:
        output = self.layer(input)
        self.computed_in = output.dtype
        return output * 2 if double else output


def prepared(name: str = "bf16", **options) -> Net:
    model = Net()
    assert select_precision(name, CPU, **options).prepare_model(model, CPU) is model
    return model


@pytest.mark.parametrize(
    ("name", "options", "computed_in", "output"),
    [
        ("no", {}, torch.float32, torch.float32),
        ("bf16", {}, torch.bfloat16, torch.float32),
        ("fp16", {}, torch.float16, torch.float32),
        ("bf16", {"keep_output_dtype": True}, torch.bfloat16, torch.bfloat16),
        ("fp16", {"keep_output_dtype": True}, torch.float16, torch.float16),
        ("bf16", {"autocast_handler": AutocastKwargs(enabled=False)}, torch.float32, torch.float32),
    ],
)
def test_a_prepared_model_computes_and_answers_in_the_right_dtypes(name, options, computed_in, output):
    model = prepared(name, **options)
    assert model(INPUT).dtype is output
    assert model.computed_in is computed_in
    assert not torch.is_autocast_enabled("cpu")


def test_the_result_is_that_of_plain_autocast():
    model = prepared()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        expected = model.layer(INPUT) * 2
    assert torch.equal(model(INPUT, double=True), expected.float())


def test_autocast_is_left_when_the_forward_fails():
    model = prepared()
    with pytest.raises(RuntimeError):
        model(torch.ones(2, 4))
    assert not torch.is_autocast_enabled("cpu")


def test_a_strategy_that_casts_by_itself_gets_the_model_as_it_is():
    model = Net()
    select_precision("bf16", CPU).prepare_model(model, CPU, autocast=False)
    assert "forward" not in model.__dict__


def test_a_model_can_call_itself():
    class Recursive(Net):
        def forward(self, input, depth=2):
            return self.layer(input) if depth == 0 else self(input, depth - 1)

    model = Recursive()
    select_precision("bf16", CPU).prepare_model(model)
    assert model(INPUT).dtype is torch.float32
    assert not torch.is_autocast_enabled("cpu")


def test_the_forward_before_can_be_found():
    model = Net()
    plain = model.forward
    select_precision("bf16", CPU).prepare_model(model)
    assert model._original_forward == plain
    assert model.forward.__wrapped__ == plain
    assert model.forward.__name__ == "forward"
    assert inspect.signature(model.forward) == inspect.signature(plain)


def test_a_deep_copy_computes_with_its_own_weights():
    model = prepared()
    twin = copy.deepcopy(model)
    torch.nn.init.zeros_(twin.layer.weight)
    torch.nn.init.zeros_(twin.layer.bias)
    assert twin(INPUT).abs().sum() == 0
    assert twin.computed_in is torch.bfloat16
    assert model(INPUT).abs().sum() > 0


def test_a_deep_copy_below_a_partial_computes_with_its_own_weights():
    model = Net()
    model.forward = functools.partial(_call_class_forward, model)
    select_precision("bf16", CPU).prepare_model(model)
    twin = copy.deepcopy(model)
    torch.nn.init.zeros_(twin.layer.weight)
    torch.nn.init.zeros_(twin.layer.bias)
    assert twin(INPUT).abs().sum() == 0
    assert list(inspect.signature(twin.forward).parameters) == ["input"]


def _call_class_forward(model: Net, input: torch.Tensor) -> torch.Tensor:
    return Net.forward(model, input)


def test_a_pickled_model_has_the_forward_of_its_class():
    model = prepared()
    loaded = pickle.loads(pickle.dumps(model))
    assert loaded.forward.__func__ is Net.forward
    assert loaded(INPUT).dtype is torch.float32
    assert loaded.computed_in is torch.float32
    assert pickle.loads(pickle.dumps(model.forward)).__func__ is Net.forward


def test_preparing_twice_keeps_working():
    model = prepared()
    select_precision("bf16", CPU, keep_output_dtype=True).prepare_model(model)
    assert model(INPUT).dtype is torch.float32
    strip_autocast(model)
    assert not has_autocast(model)
    assert "forward" not in model.__dict__


def test_autocast_is_taken_out_from_below_a_hook():
    model = prepared()
    model._old_forward = model.forward
    model.forward = functools.partial(_call_old_forward, model)
    assert has_autocast(model)
    strip_autocast(model)
    assert not has_autocast(model)
    assert "_original_forward" not in model.__dict__
    model(INPUT)
    assert model.computed_in is torch.float32


def _call_old_forward(model: Net, input: torch.Tensor) -> torch.Tensor:
    return model._old_forward(input)


def test_a_forward_below_which_another_was_put_is_kept():
    model = Net()
    replaced = functools.partial(_call_class_forward, model)
    model.forward = replaced
    select_precision("bf16", CPU).prepare_model(model)
    assert isinstance(model.forward, AutocastForward)
    strip_autocast(model)
    assert model.forward is replaced


@pytest.mark.parametrize(("name", "dtype"), [("bf16", torch.bfloat16), ("fp16", torch.float16), ("no", torch.float32)])
def test_the_context_computes_in_the_dtype(name, dtype):
    precision = select_precision(name, CPU)
    layer = torch.nn.Linear(3, 3)
    with precision.forward_context():
        assert layer(INPUT).dtype is dtype
    with precision.forward_context(AutocastKwargs(enabled=False)):
        assert layer(INPUT).dtype is torch.float32


def test_the_values_of_the_handler_are_read_when_a_model_is_prepared():
    handler = AutocastKwargs()
    precision = select_precision("bf16", CPU, autocast_handler=handler)
    handler.enabled = False
    model = Net()
    precision.prepare_model(model)
    model(INPUT)
    assert model.computed_in is torch.float32


class Pair(NamedTuple):
    first: torch.Tensor
    rest: list


@dataclasses.dataclass
class Record:
    logits: torch.Tensor
    note: str = "kept"


@pytest.mark.parametrize("name", ["bf16", "fp16"])
def test_outputs_are_converted_in_any_nesting(name):
    class Nested(Net):
        def forward(self, input):
            half = self.layer(input)
            return {"tuple": (half, None), "pair": Pair(half, [half]), "record": Record(half), "ids": half.argmax(-1)}

    model = Nested()
    select_precision(name, CPU).prepare_model(model)
    output = model(INPUT)
    found = [output["tuple"][0], output["pair"].first, *output["pair"].rest, output["record"].logits]
    assert {tensor.dtype for tensor in found} == {torch.float32}
    assert output["ids"].dtype is torch.int64
    assert (output["tuple"][1], output["record"].note, type(output["pair"])) == (None, "kept", Pair)


def test_torch_compile_sees_one_graph():
    graphs = []

    def backend(graph, inputs):
        graphs.append(graph)
        return graph

    class Answers(Net):
        def forward(self, input):
            return {"logits": (self.layer(input),)}

    model = Answers()
    select_precision("bf16", CPU).prepare_model(model)
    expected = model(INPUT)["logits"][0]
    compiled = torch.compile(model, backend=backend, fullgraph=True)
    output = compiled(INPUT)["logits"][0]
    assert torch.equal(output, expected)
    assert output.dtype is torch.float32
    assert len(graphs) == 1


def test_a_compiled_model_is_prepared_inside_its_wrapper():
    inner = Net()
    compiled = torch.compile(inner, backend="eager")
    select_precision("bf16", CPU).prepare_model(compiled)
    assert compiled(INPUT).dtype is torch.float32
    assert inner.computed_in is torch.bfloat16
    assert has_autocast(inner)
