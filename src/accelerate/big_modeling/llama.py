"""LLaMA shapes by name, so that models of 7 to 405 billion parameters can be planned for without files or a network.

The module has the names and the arithmetic of the published models (Touvron et al., 2023; Grattafiori et al., 2024):
norms by the root mean square, rotary positions, grouped queries, and feed-forward layers with a gate. It is made for
the meta device, where nothing of it takes memory.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import nn
from torch.nn import functional

#: What the configurations of the published models say, as far as it counts for memory and communication.
CONFIGS: dict[str, dict[str, int]] = {
    name: dict(
        zip(
            (
                "hidden_size",
                "intermediate_size",
                "num_hidden_layers",
                "num_attention_heads",
                "num_key_value_heads",
                "vocab_size",
            ),
            sizes,
            strict=True,
        )
    )
    for name, sizes in {
        "llama-7b": (4096, 11008, 32, 32, 32, 32000),
        "llama-70b": (8192, 28672, 80, 64, 8, 32000),
        "llama-405b": (16384, 53248, 126, 128, 8, 128256),
    }.items()
}

#: How tensor parallel divides it, as its configurations say.
PLAN = {
    **{f"model.layers.*.self_attn.{name}_proj": "colwise" for name in "qkv"},
    "model.layers.*.self_attn.o_proj": "rowwise",
    "model.layers.*.mlp.gate_proj": "colwise",
    "model.layers.*.mlp.up_proj": "colwise",
    "model.layers.*.mlp.down_proj": "rowwise",
    "lm_head": "colwise_gather_output",
}


class LlamaRMSNorm(nn.Module):
    """A norm that computes in fp32."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wide = x.float()
        wide = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-5)
        return self.weight * wide.to(x.dtype)


class LlamaAttention(nn.Module):
    """Causal attention with rotary positions, of as many heads as its layers have columns for."""

    def __init__(self, hidden: int, heads: int, key_value_heads: int, head_size: int) -> None:
        super().__init__()
        self.head_size = head_size
        self.q_proj = nn.Linear(hidden, heads * head_size, bias=False)
        self.k_proj = nn.Linear(hidden, key_value_heads * head_size, bias=False)
        self.v_proj = nn.Linear(hidden, key_value_heads * head_size, bias=False)
        self.o_proj = nn.Linear(heads * head_size, hidden, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        query, key, value = (
            layer(x).unflatten(-1, (-1, self.head_size)).transpose(1, 2)
            for layer in (self.q_proj, self.k_proj, self.v_proj)
        )
        cosine, sine = self._positions(x)
        query, key = (each * cosine + _turned(each) * sine for each in (query, key))
        grouped = query.shape[1] != key.shape[1]
        found = functional.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=grouped)
        return self.o_proj(found.transpose(1, 2).flatten(-2))

    def _positions(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return cosine and sine of the angle of each position and unit of a head [length, head size]."""
        steps = torch.arange(0, self.head_size, 2, device=x.device, dtype=torch.float32) / self.head_size
        places = torch.arange(x.shape[1], device=x.device, dtype=torch.float32)
        angles = torch.outer(places, 500000.0**-steps).repeat(1, 2)
        return angles.cos().to(x.dtype), angles.sin().to(x.dtype)


def _turned(x: torch.Tensor) -> torch.Tensor:
    first, second = x.chunk(2, dim=-1)
    return torch.cat((-second, first), dim=-1)


class LlamaMLP(nn.Module):
    """A feed-forward layer with a gate."""

    def __init__(self, hidden: int, inner: int) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(hidden, inner, bias=False)
        self.up_proj = nn.Linear(hidden, inner, bias=False)
        self.down_proj = nn.Linear(inner, hidden, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down_proj(functional.silu(self.gate_proj(x)) * self.up_proj(x))


class LlamaDecoderLayer(nn.Module):
    """Attention and a feed-forward layer, each behind a norm and beside a residual connection."""

    def __init__(self, config: dict[str, int]) -> None:
        super().__init__()
        hidden, heads = config["hidden_size"], config["num_attention_heads"]
        self.self_attn = LlamaAttention(hidden, heads, config["num_key_value_heads"], hidden // heads)
        self.mlp = LlamaMLP(hidden, config["intermediate_size"])
        self.input_layernorm, self.post_attention_layernorm = LlamaRMSNorm(hidden), LlamaRMSNorm(hidden)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.self_attn(self.input_layernorm(x))
        return x + self.mlp(self.post_attention_layernorm(x))


class LlamaModel(nn.Module):
    """Embeddings, layers and a norm."""

    def __init__(self, config: dict[str, int]) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(config["vocab_size"], config["hidden_size"])
        self.layers = nn.ModuleList(LlamaDecoderLayer(config) for _ in range(config["num_hidden_layers"]))
        self.norm = LlamaRMSNorm(config["hidden_size"])

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        x = self.embed_tokens(input_ids)
        for layer in self.layers:
            x = layer(x)
        return self.norm(x)


class LlamaForCausalLM(nn.Module):
    """A language model; called with tokens and labels [batch, length] it returns the mean loss.

    Args:
        config: the sizes that `CONFIGS` has.
    """

    _no_split_modules: ClassVar = ["LlamaDecoderLayer"]

    def __init__(self, config: dict[str, int]) -> None:
        super().__init__()
        self.config = config
        self.tp_plan = dict(PLAN)
        self.model = LlamaModel(config)
        self.lm_head = nn.Linear(config["hidden_size"], config["vocab_size"], bias=False)

    def get_input_embeddings(self) -> nn.Module:
        """Return the embeddings of tokens."""
        return self.model.embed_tokens

    def get_output_embeddings(self) -> nn.Module:
        """Return the layer that gives each token's logits."""
        return self.lm_head

    def forward(self, input_ids: torch.Tensor, labels: torch.Tensor | None = None) -> torch.Tensor:
        logits: torch.Tensor = self.lm_head(self.model(input_ids))
        if labels is None:
            return logits
        return functional.cross_entropy(logits.flatten(0, 1).float(), labels.flatten())


def build_llama(name: str) -> Any:
    """Return a model of `CONFIGS` on the meta device."""
    with torch.device("meta"):
        return LlamaForCausalLM(CONFIGS[name])
