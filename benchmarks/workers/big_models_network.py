"""A network of the shape of LLaMA, and its checkpoint in shards: what the suite of large models measures on.

Needs nothing but torch and safetensors, so that both libraries meet the same. Run it to write a checkpoint:

python big_models_network.py FOLDER
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import nn
from torch.nn import functional

SHARD = 400 * 10**6


@dataclass(frozen=True)
class Shape:
    """How large a network is; as it stands, 0.94 billion parameters."""

    layers: int = 16
    hidden: int = 2048
    inner: int = 5504
    heads: int = 16
    vocabulary: int = 32000


class Norm(nn.Module):
    """Root mean square normalisation."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(hidden))

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        return functional.rms_norm(value, self.weight.shape, self.weight)


class Attention(nn.Module):
    """Causal attention with four projections."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.heads = shape.heads
        self.q_proj = nn.Linear(shape.hidden, shape.hidden, bias=False)
        self.k_proj = nn.Linear(shape.hidden, shape.hidden, bias=False)
        self.v_proj = nn.Linear(shape.hidden, shape.hidden, bias=False)
        self.o_proj = nn.Linear(shape.hidden, shape.hidden, bias=False)

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        batch, length, hidden = value.shape
        parts = [
            projection(value).view(batch, length, self.heads, -1).transpose(1, 2)
            for projection in (self.q_proj, self.k_proj, self.v_proj)
        ]
        found = functional.scaled_dot_product_attention(*parts, is_causal=True)
        return self.o_proj(found.transpose(1, 2).reshape(batch, length, hidden))


class Mlp(nn.Module):
    """A gated network of two layers."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(shape.hidden, shape.inner, bias=False)
        self.up_proj = nn.Linear(shape.hidden, shape.inner, bias=False)
        self.down_proj = nn.Linear(shape.inner, shape.hidden, bias=False)
        self.act_fn = nn.SiLU()

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        return self.down_proj(self.act_fn(self.gate_proj(value)) * self.up_proj(value))


class Block(nn.Module):
    """One layer: 12 modules with it."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.self_attn = Attention(shape)
        self.mlp = Mlp(shape)
        self.input_layernorm = Norm(shape.hidden)
        self.post_attention_layernorm = Norm(shape.hidden)

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        value = value + self.self_attn(self.input_layernorm(value))
        return value + self.mlp(self.post_attention_layernorm(value))


class Body(nn.Module):
    """Everything but the head. The rotation of positions is left out: it has no weights."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(shape.vocabulary, shape.hidden)
        self.layers = nn.ModuleList([Block(shape) for _ in range(shape.layers)])
        self.norm = Norm(shape.hidden)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        value = self.embed_tokens(tokens)
        for layer in self.layers:
            value = layer(value)
        return self.norm(value)


class Llama(nn.Module):
    """The whole network."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.model = Body(shape)
        self.lm_head = nn.Linear(shape.hidden, shape.vocabulary, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.lm_head(self.model(tokens))


def empty(shape: Shape, dtype: torch.dtype = torch.bfloat16) -> Llama:
    """Return a network without memory."""
    with torch.device("meta"):
        return Llama(shape).to(dtype).requires_grad_(False).eval()


def filled(network: nn.Module) -> nn.Module:
    """Give a network memory, and weights that keep its numbers small; the same each time."""
    network.to_empty(device="cpu")
    torch.manual_seed(0)
    block = torch.randn(2**20) / 50
    for name, parameter in network.named_parameters():
        if name.endswith("norm.weight"):
            nn.init.ones_(parameter)
            continue
        flat = parameter.detach().view(-1)
        for part in flat.split(block.numel()):
            part.copy_(block[: part.numel()])
    return network


def write(folder: Path, shape: Shape) -> None:
    """Write a checkpoint in shards of 400 MB, block after block, and its index."""
    folder.mkdir(parents=True, exist_ok=True)
    shards: list[dict[str, torch.Tensor]] = [{}]
    size = 0
    for name, tensor in filled(empty(shape)).state_dict().items():
        if size + tensor.nbytes > SHARD and shards[-1]:
            shards.append({})
            size = 0
        shards[-1][name] = tensor
        size += tensor.nbytes
    places = {}
    for number, shard in enumerate(shards, 1):
        file = f"model-{number:05}-of-{len(shards):05}.safetensors"
        save_file(shard, folder / file, metadata={"format": "pt"})
        places |= dict.fromkeys(shard, file)
    index = {"metadata": {}, "weight_map": places}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


if __name__ == "__main__":
    write(Path(sys.argv[1]), Shape())
