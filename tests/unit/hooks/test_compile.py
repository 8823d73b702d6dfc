"""`torch.compile` on hooked models: no break at what is resident, one graph for all blocks, nothing compiled anew.

The backend runs graphs as they are, so this takes the time of tracing only.
"""

from __future__ import annotations

from collections import Counter

import pytest
import torch
import torch._dynamo
from torch._dynamo.utils import counters

from accelerate.hooks import attach_align_device_hook_on_blocks
from tests.unit.hooks.models import PARTS, TOKENS, Model

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
RESIDENT = dict.fromkeys(PARTS, False)


@pytest.fixture(autouse=True)
def fresh_compiler():
    torch._dynamo.reset()
    counters.clear()
    yield
    torch._dynamo.reset()


def hooked(offload: dict[str, bool], **options) -> tuple[Model, torch.Tensor]:
    """Return a hooked model, and what it computed before it was hooked."""
    model = Model().eval().requires_grad_(False)
    expected = model(TOKENS)
    weights = dict(model.state_dict())
    attach_align_device_hook_on_blocks(model, dict.fromkeys(PARTS, "cpu"), offload, weights_map=weights, **options)
    return model, expected


class Graphs:
    """A backend that counts its graphs by how many operations they have."""

    def __init__(self) -> None:
        self.sizes: Counter[int] = Counter()

    def __call__(self, graph: torch.fx.GraphModule, inputs: list) -> object:
        self.sizes[sum(node.op.startswith("call") for node in graph.graph.nodes)] += 1
        return graph.forward


def test_a_resident_model_is_one_graph() -> None:
    model, expected = hooked(RESIDENT)
    graphs = Graphs()
    compiled = torch.compile(model, backend=graphs, fullgraph=True)
    for _ in range(3):
        assert torch.equal(compiled(TOKENS), expected)
    assert graphs.sizes.total() == 1


def test_resident_blocks_share_one_graph() -> None:
    model, expected = hooked(RESIDENT)
    graphs = Graphs()
    for block in model.blocks:
        block.compile(backend=graphs, fullgraph=True)
    for _ in range(3):
        assert torch.equal(model(TOKENS), expected)
    assert graphs.sizes.total() == 1


@pytest.mark.parametrize("options", [{}, {"preload_module_classes": ["Block"]}], ids=["leaves", "blocks"])
def test_an_offloaded_block_ends_a_graph_and_is_not_compiled_anew(options: dict) -> None:
    model, expected = hooked({**RESIDENT, "blocks.1": True}, **options)
    graphs = Graphs()
    compiled = torch.compile(model, backend=graphs)
    for _ in range(2):
        assert torch.equal(compiled(TOKENS), expected)
    before = graphs.sizes.total()
    for _ in range(3):
        assert torch.equal(compiled(TOKENS), expected)
    assert graphs.sizes.total() == before
    assert max(graphs.sizes) > 1


def test_blocks_that_come_at_once_are_compiled_once_for_all() -> None:
    model, expected = hooked(dict.fromkeys(PARTS, True), preload_module_classes=["Block"])
    graphs = Graphs()
    compiled = torch.compile(model, backend=graphs)
    for _ in range(3):
        assert torch.equal(compiled(TOKENS), expected)
    assert [size for size in graphs.sizes.elements() if size > 1] == [max(graphs.sizes)], "the other moves the output"
