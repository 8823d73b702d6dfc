"""The network that sharded training is measured on: of the shape of LLaMA, small or large, in plain torch.

It has no positions, so that any part of a sequence can be computed anywhere; and no buffers.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import nn


@dataclass(frozen=True)
class Shape:
    """How large a network is, and what one process computes in a step."""

    width: int = 384
    inner: int = 1024
    layers: int = 4
    vocabulary: int = 1024
    heads: int = 6
    causal: bool = True
    batch: int = 4
    length: int = 64


SMALL = Shape()
#: Parameters take 0.26 GB, much more than anything else in a step of few tokens.
LARGE = Shape(width=768, inner=2048, layers=9, heads=12, batch=1, length=32)


def middle(shape: Shape) -> Shape:
    """Return a wider shape, whose parameters take 0.1 GB."""
    return replace(shape, width=640, inner=1728, heads=10)


class Attention(nn.Module):
    """Attention whose heads can be divided: it finds out how many there are."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.size, self.causal = shape.width // shape.heads, shape.causal
        self.q_proj = nn.Linear(shape.width, shape.width, bias=False)
        self.k_proj = nn.Linear(shape.width, shape.width, bias=False)
        self.v_proj = nn.Linear(shape.width, shape.width, bias=False)
        self.o_proj = nn.Linear(shape.width, shape.width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        heads = [
            layer(x).unflatten(-1, (-1, self.size)).transpose(1, 2) for layer in (self.q_proj, self.k_proj, self.v_proj)
        ]
        y = nn.functional.scaled_dot_product_attention(*heads, is_causal=self.causal)
        return self.o_proj(y.transpose(1, 2).flatten(-2))


class Block(nn.Module):
    """Attention and a gated feed-forward layer, each with a norm and a residual connection."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.attention_norm, self.norm = nn.RMSNorm(shape.width), nn.RMSNorm(shape.width)
        self.attention = Attention(shape)
        self.gate = nn.Linear(shape.width, shape.inner, bias=False)
        self.up = nn.Linear(shape.width, shape.inner, bias=False)
        self.down = nn.Linear(shape.inner, shape.width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.attention_norm(x))
        y = self.norm(x)
        return x + self.down(nn.functional.silu(self.gate(y)) * self.up(y))


class Network(nn.Module):
    """Token numbers to logits; without embeddings or head it is a stage of a pipeline."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.embeddings: nn.Module | None = nn.Embedding(shape.vocabulary, shape.width)
        self.layers = nn.ModuleList(Block(shape) for _ in range(shape.layers))
        self.norm: nn.Module | None = nn.RMSNorm(shape.width)
        self.head: nn.Module | None = nn.Linear(shape.width, shape.vocabulary, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.embeddings is not None:
            x = self.embeddings(x)
        for layer in self.layers:
            x = layer(x)
        return x if self.norm is None or self.head is None else self.head(self.norm(x))


def build(shape: Shape) -> Network:
    """Return the network with the same weights each time."""
    torch.manual_seed(0)
    return Network(shape)


def batch(shape: Shape, share: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return inputs and labels [batch, length] of the process that reads this share of the data."""
    generator = torch.Generator().manual_seed(share)
    tokens = torch.randint(shape.vocabulary, (shape.batch, shape.length + 1), generator=generator)
    return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()


def loss_of(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Return the mean loss over all tokens."""
    return nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())
