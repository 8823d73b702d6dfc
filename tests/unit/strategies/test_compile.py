from __future__ import annotations

import copy
import pickle

import pytest
import torch

from accelerate.config.dynamo import TorchDynamoPlugin
from accelerate.strategies.compile import (
    allow_tf32,
    compile_model,
    compile_regions,
    compiles_in_place,
    has_compiled_regions,
    has_repeated_blocks,
    is_compiled_module,
    is_repeated_blocks,
    regions,
)

INPUT = torch.ones(2, 4)
# torch.compile looks at gradients of intermediate results between two compiled regions.
pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")


class Block(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 4)

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return self.layer(input).relu()


class Net(torch.nn.Module):
    """Layers in a row between an embedding and a head of two parts."""

    def __init__(self, num_layers: int = 3) -> None:
        super().__init__()
        self.embedding = torch.nn.Linear(4, 4)
        self.body = torch.nn.ModuleDict({"layers": torch.nn.ModuleList(Block() for _ in range(num_layers))})
        self.head = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Tanh())

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        hidden = self.embedding(input)
        for layer in self.body["layers"]:
            hidden = layer(hidden)
        return self.head(hidden)


@pytest.mark.parametrize(
    ("module", "repeats", "contains"),
    [
        (torch.nn.ModuleList([Block(), Block()]), True, True),
        (torch.nn.ModuleList([Block()]), True, True),
        (torch.nn.ModuleList(), False, False),
        (torch.nn.ModuleList([Block(), torch.nn.Linear(1, 1)]), False, False),
        (torch.nn.Sequential(Block(), Block()), False, False),
        (Net(), False, True),
    ],
)
def test_repeated_blocks_are_lists_of_one_class(module, repeats, contains):
    assert (is_repeated_blocks(module), has_repeated_blocks(module)) == (repeats, contains)


def test_regions_are_the_blocks_and_what_lies_beside_them():
    model = Net()
    names = {module: name for name, module in model.named_modules()}
    found = [names[region] for region in regions(model)]
    assert found == ["body.layers.0", "body.layers.1", "body.layers.2", "head"]
    linear = torch.nn.Linear(1, 1)
    assert list(regions(linear)) == [linear]


class Graphs(list):
    """A backend of `torch.compile` that runs what it is given and keeps it."""

    def __call__(self, graph, inputs):
        self.append(graph)
        return graph


def test_blocks_share_a_graph_and_names_stay():
    graphs = Graphs()
    model = Net(num_layers=12)
    names, expected = list(model.state_dict()), model(INPUT)
    assert compile_regions(model, backend=graphs, fullgraph=True) is model
    assert torch.equal(model(INPUT), expected)
    assert list(model.state_dict()) == names
    assert len(graphs) == 2
    assert (has_compiled_regions(model), is_compiled_module(model), compiles_in_place(model)) == (True, False, False)


def test_a_model_with_compiled_regions_trains_copies_and_pickles():
    model = compile_regions(Net(), backend="eager")
    model(INPUT).sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())
    for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert torch.equal(twin(INPUT), model(INPUT))
        assert not has_compiled_regions(twin)


@pytest.mark.parametrize(
    "module",
    [
        torch.nn.Linear(4, 4),
        torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Tanh()),
        torch.nn.ModuleList([torch.nn.Sequential(torch.nn.Linear(4, 4))]),
    ],
)
def test_modules_of_torch_are_compiled_too(module):
    graphs = Graphs()
    compile_regions(module, backend=graphs)
    for part in module.children() if isinstance(module, torch.nn.ModuleList) else [module]:
        assert compiles_in_place(part)
        part(INPUT)
    assert len(graphs) == 1
    assert not has_compiled_regions(pickle.loads(pickle.dumps(module)))


@pytest.mark.parametrize(
    ("settings", "whole", "in_regions"),
    [
        ({}, False, False),
        ({"backend": "eager"}, True, False),
        ({"backend": "eager", "use_regional_compilation": True}, False, True),
    ],
)
def test_the_plugin_says_how(settings, whole, in_regions):
    model = Net()
    compiled = compile_model(model, TorchDynamoPlugin(**settings))
    assert (is_compiled_module(compiled), has_compiled_regions(compiled)) == (whole, in_regions)
    assert (compiled is model) is not whole
    assert torch.equal(compiled(INPUT), model(INPUT))


@pytest.mark.parametrize("regional", [True, False])
def test_a_model_that_was_compiled_as_a_whole_stays_as_it_is(regional):
    plugin = TorchDynamoPlugin(backend="eager", use_regional_compilation=regional)
    wrapped = torch.compile(Net(), backend="eager")
    assert compile_model(wrapped, plugin) is wrapped
    in_place = Net()
    in_place.compile(backend="eager")
    assert compile_model(in_place, plugin) is in_place
    assert not has_compiled_regions(in_place)


def test_regions_that_a_person_compiled_are_not_compiled_again():
    model = Net()
    model.head = torch.compile(model.head, backend="eager")
    compile_model(model, TorchDynamoPlugin(backend="eager", use_regional_compilation=True))
    assert has_compiled_regions(model)
    assert not any(compiles_in_place(module) for module in model.modules())


def test_other_settings_reach_torch():
    plugin = TorchDynamoPlugin(backend="eager", fullgraph=True)

    class Breaks(torch.nn.Module):
        def forward(self, input):
            torch._dynamo.graph_break()
            return input

    with pytest.raises(torch._dynamo.exc.Unsupported):
        compile_model(Breaks(), plugin)(INPUT)


@pytest.mark.parametrize(
    ("device", "backend", "expected"),
    [("cuda", "eager", "high"), ("cpu", "eager", "highest"), ("cuda", "no", "highest")],
)
def test_tf32_is_allowed_for_compiled_models_on_cuda(device, backend, expected):
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        allow_tf32(torch.device(device), TorchDynamoPlugin(backend=backend))
        assert torch.get_float32_matmul_precision() == expected
    finally:
        torch.set_float32_matmul_precision(before)
