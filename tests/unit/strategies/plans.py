"""Models for tests of planning: small ones whose sizes don't divide evenly, and those that are known by name."""

from __future__ import annotations

from functools import cache

import torch

from accelerate.big_modeling.llama import CONFIGS, LlamaForCausalLM, build_llama
from accelerate.big_modeling.shapes import Shape
from accelerate.strategies.planning.facts import Subject

#: 500 tokens and 176 inner units leave rests over 8 and 64 ranks; norms have fewer rows than 128 ranks.
TINY = {
    "hidden_size": 64,
    "intermediate_size": 176,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "vocab_size": 500,
}


@cache
def subject(name: str) -> Subject:
    """Return the model called `name`, "tiny" or one of the shapes that are known by name."""
    config = CONFIGS.get(name, TINY)
    if name == "tiny":
        with torch.device("meta"):
            model = LlamaForCausalLM(TINY)
    else:
        model = build_llama(name)
    return Subject(model, Shape.of({**config, "model_type": "llama"}), ("LlamaDecoderLayer",))
