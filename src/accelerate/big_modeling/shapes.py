"""What configurations say about a transformer, and what its activations take by that.

Sources: Korthikanti et al., Reducing Activation Recomputation in Large Transformer Models (2022), for what a layer
keeps for the backward pass; Pope et al., Efficiently Scaling Transformer Inference (2022), for keys and values.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

#: What configurations call the facts that an estimate needs.
NAMES = {
    "layers": ("num_hidden_layers", "n_layer", "num_layers", "n_layers"),
    "hidden": ("hidden_size", "n_embd", "d_model", "dim"),
    "heads": ("num_attention_heads", "n_head", "num_heads", "n_heads"),
    "key_value_heads": ("num_key_value_heads", "num_kv_heads", "n_kv_heads"),
    "head_size": ("head_dim", "d_kv"),
    "inner": ("moe_intermediate_size", "intermediate_size", "n_inner", "d_ff", "ffn_dim", "ffn_hidden_size"),
    "experts": ("num_experts_per_tok", "moe_top_k"),
    "vocabulary": ("vocab_size",),
    "activation": ("hidden_act", "activation_function", "hidden_activation", "activation", "dense_act_fn"),
    "dropout": ("resid_pdrop", "hidden_dropout_prob", "hidden_dropout", "dropout", "dropout_rate"),
}

#: Kinds of models whose feed-forward layers have no gate, and whose norms subtract the mean.
PLAIN = frozenset(
    {
        "albert",
        "bart",
        "bert",
        "blip",
        "bloom",
        "clip",
        "codegen",
        "distilbert",
        "electra",
        "falcon",
        "gpt2",
        "gpt_bigcode",
        "gpt_neo",
        "gpt_neox",
        "gptj",
        "m2m_100",
        "marian",
        "mbart",
        "mpt",
        "opt",
        "pegasus",
        "phi",
        "roberta",
        "starcoder2",
        "t5",
        "vit",
        "wav2vec2",
        "whisper",
        "xlm-roberta",
    }
)


@dataclass(frozen=True)
class Shape:
    """The facts about a transformer that its activations follow from.

    Args:
        layers: how many.
        hidden: the width of the residual stream.
        heads: of queries.
        key_value_heads: of keys and values.
        head_size: the width of a head.
        inner: the width of the feed-forward layers that a token passes, all its experts together.
        vocabulary: the width of the logits.
        gated: whether feed-forward layers have a gate (SwiGLU and the like), and norms compute in fp32 (RMSNorm).
        rectified: whether the activation is ReLU, whose input need not be kept.
        dropout: whether residual streams are dropped out in training.
    """

    layers: int
    hidden: int
    heads: int
    key_value_heads: int
    head_size: int
    inner: int
    vocabulary: int
    gated: bool = True
    rectified: bool = False
    dropout: bool = False

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> Shape | None:
        """Return the facts in a configuration; None if it lacks the most important."""
        config = {**config, **(config.get("text_config") or {})}
        found = {
            fact: next((config[name] for name in names if config.get(name)), None) for fact, names in NAMES.items()
        }
        layers, hidden, heads = found["layers"], found["hidden"], found["heads"]
        if not (layers and hidden and heads):
            return None
        return cls(
            layers=layers,
            hidden=hidden,
            heads=heads,
            key_value_heads=found["key_value_heads"] or heads,
            head_size=found["head_size"] or hidden // heads,
            inner=(found["inner"] or 4 * hidden) * (found["experts"] or 1),
            vocabulary=found["vocabulary"] or 0,
            gated=config.get("model_type") not in PLAIN,
            rectified=found["activation"] == "relu",
            dropout=bool(found["dropout"]),
        )

    @property
    def queries(self) -> int:
        """The width of all queries of a token."""
        return self.heads * self.head_size

    @property
    def keys(self) -> int:
        """The width of all keys of a token."""
        return self.key_value_heads * self.head_size


def cache_bytes(shape: Shape, tokens: int, size: float) -> float:
    """Return the bytes of the keys and values of `tokens` tokens, elements of `size` bytes."""
    return 2 * shape.layers * shape.keys * tokens * size


def forward_bytes(shape: Shape, tokens: int, size: float) -> float:
    """Return the bytes that a forward without gradients holds at its widest place.

    That is a feed-forward layer (its input, the residual stream, and what its first half computes), attention
    (the same two, queries, keys, values and the result), or the logits with their input.
    """
    feed_forward = 2 * shape.hidden + (3 if shape.gated else 2) * shape.inner
    attention = 2 * shape.hidden + 2 * (shape.queries + shape.keys)
    logits = shape.hidden + shape.vocabulary
    return tokens * size * max(feed_forward, attention, logits)


def kept_bytes(shape: Shape, tokens: int, size: float) -> float:
    """Return the bytes that a forward keeps for the backward pass.

    In a layer, for each token: the inputs and results of two norms (4 hidden), queries, keys, values, and what
    attention returns (2 queries, 2 keys), and the inner activations: four with a gate, else two, and one with ReLU.
    Norms in fp32 keep what they normalize in 4 bytes, and the normalized besides. Dropout keeps two masks of a byte.
    Attention is one that keeps no scores. Last, a norm, and the logarithm of the softmax in fp32. Without gate and with
    an inner width of 4 hidden, in 16 bits, a layer has the 34 bytes per token and hidden unit of Korthikanti et al.
    """
    copies = 4 if shape.gated else 1 if shape.rectified else 2
    norm = (2 * size + (4 if shape.gated else 0)) * shape.hidden
    layer = 2 * norm + size * (2 * shape.queries + 2 * shape.keys + copies * shape.inner)
    if shape.dropout:
        layer += 2 * shape.hidden
    return tokens * (shape.layers * layer + norm + 4 * shape.vocabulary)
