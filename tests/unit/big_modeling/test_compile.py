"""`torch.compile` on models that are dispatched: how often graphs break, and that nothing is compiled anew.

The backend runs graphs as they are, so this takes the time of tracing only.
"""

from __future__ import annotations

import pytest
import torch
import torch._dynamo
from torch._dynamo.utils import counters

from accelerate import disk_offload, dispatch_model, init_empty_weights, load_checkpoint_and_dispatch
from accelerate.big_modeling import OffloadSettings
from tests.unit.big_modeling.checkpoints import PARTS, TOKENS, Net, save, trained

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")


@pytest.fixture(autouse=True)
def fresh_compiler():
    torch._dynamo.reset()
    counters.clear()
    yield
    torch._dynamo.reset()


class Graphs:
    """A backend that counts the operations of its graphs."""

    def __init__(self) -> None:
        self.operations: list[int] = []

    def __call__(self, graph: torch.fx.GraphModule, inputs: list) -> object:
        self.operations.append(sum(node.op.startswith("call") for node in graph.graph.nodes))
        return graph.forward


def run(model, expected: torch.Tensor, times: int = 3, **options) -> list[list[int]]:
    """Run a compiled model, and return after each run the operations of the graphs that there are."""
    graphs = Graphs()
    compiled = torch.compile(model, backend=graphs, **options)
    seen = []
    for _ in range(times):
        with torch.no_grad():
            torch.testing.assert_close(compiled(TOKENS), expected)
        seen.append(list(graphs.operations))
    return seen


def test_a_model_on_devices_is_one_graph_without_a_break() -> None:
    net = trained()
    expected = net(TOKENS)
    model = dispatch_model(net, dict.fromkeys(PARTS, "cpu"), force_hooks=True)
    seen = run(model, expected, fullgraph=True)
    assert [len(graphs) for graphs in seen] == [1, 1, 1]
    assert counters["graph_break"] == {}


class Straight(Net):
    """The same without a loop: where a graph ends inside of one, torch compiles what is in it by itself."""

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        value = torch.relu(self.layers[0](self.embed(tokens))) + self.shift
        value = torch.relu(self.layers[1](value)) + self.shift
        return self.head(self.norm(value))


@pytest.mark.parametrize("prefetch", [True, False])
@pytest.mark.parametrize("kind", [Straight, Net])
def test_layers_on_the_disk_break_graphs_and_are_not_compiled_anew(tmp_path, prefetch, kind) -> None:
    net = trained()
    expected = net(TOKENS)
    path = save(net, tmp_path / "model.safetensors")
    with init_empty_weights():
        model = kind().eval().requires_grad_(False)
    where = {**dict.fromkeys(PARTS, "cpu"), "layers.0": "disk"}
    model = load_checkpoint_and_dispatch(
        model,
        path,
        where,
        offload_folder=tmp_path / "offload",
        offload_settings=OffloadSettings(prefetch=prefetch),
    )
    seen = run(model, expected, times=4)
    assert seen[0] == seen[1] == seen[2] == seen[3]
    if kind is Straight:  # up to the layer, from there on, and the output on its way to where the input came from
        assert seen[0] == [1, 7, 1]
        assert [reason for reason in counters["graph_break"] if "run_hooked" not in reason] == []
    else:  # one for each layer that is there
        assert len(seen[0]) == 5


def test_everything_on_the_disk_has_no_graph_that_moves_weights(tmp_path) -> None:
    net = trained(tied=False)
    expected = net(TOKENS)
    model = disk_offload(net, tmp_path)
    seen = run(model, expected)
    assert seen[0] == seen[-1]
    assert all(parameter.is_meta for parameter in model.parameters())


def test_a_longer_input_is_compiled_once_more_and_not_for_each_layer() -> None:
    net = trained()
    model = dispatch_model(net, dict.fromkeys(PARTS, "cpu"), force_hooks=True)
    graphs = Graphs()
    compiled = torch.compile(model, backend=graphs)
    for length in (3, 4, 5, 6):
        compiled(torch.zeros(length, dtype=torch.long))
    assert len(graphs.operations) == 2  # for the length that came first, and for any length
