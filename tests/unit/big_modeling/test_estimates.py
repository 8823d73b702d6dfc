"""Estimates: closed forms by hand, and what a forward really keeps, measured with hooks on saved tensors."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from accelerate.big_modeling.estimates import FORMATS, count, estimate, shares
from accelerate.big_modeling.memory_map import map_memory
from accelerate.big_modeling.shapes import Shape, cache_bytes, forward_bytes, kept_bytes

LLAMA_2_7B = {
    "model_type": "llama",
    "num_hidden_layers": 32,
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_attention_heads": 32,
    "vocab_size": 32000,
}
GPT = Shape(
    layers=2, hidden=8, heads=2, key_value_heads=2, head_size=4, inner=32, vocabulary=0, gated=False, dropout=True
)


class Norm(nn.Module):
    """RMSNorm, in fp32 whatever comes in."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(hidden))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        full = x.to(torch.float32)
        full = full * torch.rsqrt(full.pow(2).mean(-1, keepdim=True) + 1e-6)
        return self.weight * full.to(x.dtype)


class Layer(nn.Module):
    """A layer of a LLaMA, without rotation of positions."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.before, self.after = Norm(shape.hidden), Norm(shape.hidden)
        self.q, self.k, self.v = (
            nn.Linear(shape.hidden, width, bias=False) for width in (shape.queries, shape.keys, shape.keys)
        )
        self.o = nn.Linear(shape.queries, shape.hidden, bias=False)
        self.gate, self.up = (nn.Linear(shape.hidden, shape.inner, bias=False) for _ in range(2))
        self.down = nn.Linear(shape.inner, shape.hidden, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        normed = self.before(x)
        q, k, v = (
            each(normed).unflatten(-1, (-1, self.shape.head_size)).transpose(1, 2) for each in (self.q, self.k, self.v)
        )
        attended = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        x = x + self.o(attended.transpose(1, 2).flatten(-2))
        normed = self.after(x)
        return x + self.down(nn.functional.silu(self.gate(normed)) * self.up(normed))


def bytes_kept(model: nn.Module, run: Callable[[], object]) -> int:
    """Return the bytes of the storages that a forward keeps for the backward pass, those of the model apart."""
    own = {each.untyped_storage().data_ptr() for each in model.parameters()}
    seen: dict[int, torch.UntypedStorage] = {}

    def note(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            seen[storage.data_ptr()] = storage  # held, so that no other gets its address
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        result = run()
    assert result is not None
    return sum(storage.nbytes() for storage in seen.values())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("key_value_heads", [8, 2])
def test_what_a_forward_keeps_is_what_is_measured(dtype: torch.dtype, key_value_heads: int) -> None:
    shape = Shape(3, hidden=128, heads=8, key_value_heads=key_value_heads, head_size=16, inner=344, vocabulary=256)
    model = nn.Sequential(nn.Embedding(256, 128), *(Layer(shape) for _ in range(3)), Norm(128), nn.Linear(128, 256)).to(
        dtype
    )
    words = torch.arange(256).reshape(2, 128)
    measured = bytes_kept(
        model, lambda: nn.functional.cross_entropy(model(words).flatten(0, 1).float(), words.flatten())
    )
    assert kept_bytes(shape, 256, dtype.itemsize) == pytest.approx(measured, rel=0.03)


def test_without_a_gate_it_is_the_formula_of_the_paper() -> None:
    tokens, norm_at_the_end = 5, 2 * 2 * 8
    assert kept_bytes(GPT, tokens, 2) == tokens * (34 * 8 * 2 + norm_at_the_end)


def test_keys_and_values_of_a_known_model() -> None:
    shape = Shape.of(LLAMA_2_7B)
    assert shape is not None
    assert cache_bytes(shape, 1, 2) == 524_288  # 2 x 32 layers x 4096 x 2 bytes: half a MiB for each token
    grouped = Shape.of({**LLAMA_2_7B, "num_key_value_heads": 8})
    assert grouped is not None
    assert cache_bytes(grouped, 4096, 2) == 512 * 2**20


def test_a_forward_is_as_wide_as_its_widest_place() -> None:
    shape = Shape.of(LLAMA_2_7B)
    assert shape is not None
    assert forward_bytes(shape, 1, 2) == 2 * (2 * 4096 + 3 * 11008)
    assert forward_bytes(GPT, 3, 4) == 3 * 4 * (2 * 8 + 2 * 32)


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({}, None),
        ({"hidden_size": 8, "num_hidden_layers": 2}, None),
        ({"n_embd": 8, "n_layer": 2, "n_head": 2, "model_type": "gpt2", "resid_pdrop": 0.1}, GPT),
        ({"text_config": {"n_embd": 8, "n_layer": 2, "n_head": 2, "model_type": "gpt2", "resid_pdrop": 0.1}}, GPT),
    ],
    ids=["nothing", "no heads", "gpt2", "inside of another"],
)
def test_facts_in_configurations(config: dict, expected: Shape | None) -> None:
    assert Shape.of(config) == expected


def test_experts_that_a_token_passes_count_together() -> None:
    found = Shape.of({**LLAMA_2_7B, "num_experts_per_tok": 2, "moe_intermediate_size": 100})
    assert found is not None
    assert found.inner == 200


class Tied(nn.Module):
    """10,000 elements under two names, 3 layers of 100, and 8 bytes that no format changes."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(100, 100)
        self.layers = nn.ModuleList(nn.Linear(10, 10, bias=False) for _ in range(3))
        self.head = nn.Linear(100, 100, bias=False)
        self.head.weight = self.embed.weight
        self.register_buffer("steps", torch.zeros(1, dtype=torch.int64))


@pytest.mark.parametrize("stored", [torch.float32, torch.bfloat16], ids=str)
def test_weights_are_counted_exactly_in_every_format(stored: torch.dtype) -> None:
    model = Tied().to(stored)
    found = {each.dtype: each for each in estimate(model)}
    bytes_each = {"float32": 4, "float16": 2, "bfloat16": 2, "fp8": 1, "int8": 1, "int4": 0.5}
    assert {name: each.weights for name, each in found.items()} == {
        name: 10_300 * size + 8 for name, size in bytes_each.items()
    }
    assert {name: each.largest_layer for name, each in found.items()} == {
        name: 10_000 * size for name, size in bytes_each.items()
    }
    assert count(model).largest == "embed"


def test_training_holds_sixteen_bytes_for_each_parameter() -> None:
    model = nn.Linear(10, 10, bias=False)
    found = {each.dtype: each for each in estimate(model)}
    assert [found[name].training for name in ("float32", "float16", "bfloat16")] == [1600] * 3
    assert (found["float32"].gradients, found["float32"].optimizer) == (400, 800)
    assert [found[name].training for name in ("fp8", "int8", "int4")] == [None] * 3
    states = torch.optim.Adam(model.parameters(), foreach=False)
    model(torch.ones(1, 10)).sum().backward()
    states.step()
    held = [each for state in states.state.values() for each in state.values() if each.ndim]
    parts = [*model.parameters(), *(each.grad for each in model.parameters()), *held]
    assert sum(each.nbytes for each in parts if each is not None) == 1600


def test_what_follows_from_tokens_is_left_out_without_them() -> None:
    without = estimate(nn.Linear(2, 2), config=LLAMA_2_7B)[0]
    assert (without.activations, without.kept, without.kv_cache, without.inference) == (
        None,
        None,
        None,
        without.weights,
    )
    found = estimate(nn.Linear(2, 2), config=LLAMA_2_7B, dtypes=["int4"], batch_size=2, sequence_length=8)[0]
    assert found.kv_cache == 16 * 524_288  # in 16 bits, since nothing computes in 4
    assert found.kept is None
    assert found.inference == found.weights + found.activations + found.kv_cache


def test_an_estimate_is_divided_as_a_plan_does() -> None:
    with torch.device("meta"):
        model = nn.Sequential(*(nn.Linear(10, 10, bias=False) for _ in range(8)))
    whole = estimate(model, config=LLAMA_2_7B, dtypes=["float32"], sequence_length=8)[0]
    found = shares(map_memory(model, {0: 1600, 1: 800, "cpu": 10_000}), whole)
    assert [(each.device, each.weights) for each in found] == [(0, 1200), (1, 800), ("cpu", 1200)]
    assert whole.kv_cache is not None
    assert [each.kv_cache for each in found] == [whole.kv_cache * part for part in (6 / 8, 2 / 8, 0)]
    assert [each.activations for each in found] == [whole.activations, whole.activations, 0]
    assert sum(each.training or 0 for each in found) == whole.training
    assert set(FORMATS) >= {each.dtype for each in estimate(model)}
