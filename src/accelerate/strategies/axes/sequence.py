"""Sequence parallel: each rank of the axis computes a part of every sequence, and some heads of all of it in attention.

The parts and the exchange of heads are those of DeepSpeed's ALST (https://arxiv.org/abs/2506.13996), for the models of
transformers; the DeepSpeed engine has no part in it. Models stay whole: their gradients are averaged over this axis as
over replicas, by whichever strategy the run has.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, final

import torch

from accelerate.base.messages import message
from accelerate.config.sequence_parallel import refuse_eager
from accelerate.data_loader.turns import TurnLoader
from accelerate.strategies.axes.base import Axis, Place
from accelerate.strategies.axes.ulysses import DividedAttention, start_deepspeed
from accelerate.strategies.mesh import collectives_over

if TYPE_CHECKING:
    from accelerate.strategies.bundle import Bundle

#: The kinds of layers that a model may have, where its configuration tells them.
ATTENTION = ("full_attention", "attention", "sliding_attention")


@final
class Sequences(Axis):
    """Sequences divided over ranks, and heads within attention."""

    name = "sp"
    averages = True

    def __init__(self, place: Place) -> None:
        super().__init__(place)
        settings = place.settings
        self.size = self.mesh.size()
        self.length = None if settings.sp_seq_length_is_variable else settings.sp_seq_length
        if self.length is not None and self.length % self.size:
            raise ValueError(_unequal_parts(self.length, self.size))
        self.group = self.mesh.get_group()
        start_deepspeed(self.group)
        self.attentions: dict[str, DividedAttention] = {}
        self._packs = False

    def check(self, bundle: Bundle) -> None:
        for model in bundle.models:
            if not getattr(model, "_is_accelerate_prepared", False):
                self._implementation_of(model)

    def prepare_model(self, model: torch.nn.Module) -> torch.nn.Module:
        """Let the attention of `model` see whole sequences; nothing else of a model looks beyond a token."""
        name = self._implementation_of(model)
        if name not in self.attentions:
            self.attentions[name] = self._put(name)
        self.attentions[name].members.update(model.modules())
        return model

    def prepare_data_loader(self, data_loader: Any) -> Any:
        if isinstance(data_loader, TurnLoader):
            return data_loader
        ranks = collectives_over(self.mesh, self.place.runtime)
        return TurnLoader(data_loader, ranks, self.group, length=self.length, packs=self._packs)

    def _put(self, name: str) -> DividedAttention:
        """Put attention for divided sequences in the place of the one that transformers knows by `name`.

        Another `Accelerator` of this run has the same groups, and shares it; that of an earlier run is taken away.
        """
        from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

        if "/" in name:  # transformers fetches kernels when they are first asked for
            from transformers.modeling_flash_attention_utils import lazy_import_flash_attention

            lazy_import_flash_attention(name)
        whole = ALL_ATTENTION_FUNCTIONS[name]
        if isinstance(whole, DividedAttention):
            if (whole.group, whole.length) == (self.group, self.length):
                return whole
            whole = whole.whole
        divided = DividedAttention(name, whole, self.group, self.place.runtime.gradient_state, self.length)
        ALL_ATTENTION_FUNCTIONS[name] = divided
        return divided

    def _implementation_of(self, model: torch.nn.Module) -> str:
        """Return the name of the attention of a model.

        Raises:
            TypeError: a model that isn't one of transformers.
            ValueError: a model whose sequences can't be divided.
        """
        config = getattr(model, "config", None)
        name = getattr(config, "_attn_implementation", None)
        if config is None or not isinstance(name, str) or not hasattr(config, "get_text_config"):
            raise TypeError(_other_library(model))
        for given, why, do in _problems(model, config.get_text_config(), self.size, self.place.layout.tp_size):
            allowed = "decoders of transformers whose layers are attention, with heads that can be dealt out"
            raise ValueError(message(given=given, why=why, allowed=allowed, do=do))
        refuse_eager(name)
        wanted = self.place.settings.sp_attn_implementation
        if wanted not in (None, name):
            raise ValueError(_other_attention(model, name, wanted))
        self._packs = "flash" in name
        return name


def _problems(model: torch.nn.Module, config: Any, size: int, tp_size: int) -> Iterator[tuple[str, str, str]]:
    """Yield what keeps the sequences of a model from being divided: what it is, why that is so, and what to do."""
    kind = type(model).__name__
    heads = getattr(config, "num_attention_heads", None)
    kinds = getattr(config, "layer_types", None) or getattr(config, "layers_block_type", None) or ()
    others = sorted(set(kinds) - set(ATTENTION)) if not isinstance(kinds, str) else []
    instead = "train this model with sp_size=1"
    if not isinstance(heads, int) or others:
        layers = f"layers of {', '.join(others)}" if others else "layers that have no attention heads"
        yield (
            f"a {kind} with {layers}",
            "what such a layer carries from token to token ends with a rank's part",
            instead,
        )
        return
    if getattr(model, "_supports_attention_backend", True) is False:
        yield f"a {kind}, whose attention can't be replaced", "attention has to see the parts of all ranks", instead
    if any(getattr(module, "is_causal", None) is False for module in model.modules()):
        yield f"a {kind} with attention in both directions", "padding can't be told from tokens without a mask", instead
    key_heads = getattr(config, "num_key_value_heads", None) or heads
    own, own_keys = heads // tp_size, max(key_heads // tp_size, 1)
    if own % size or (own_keys % size and size % own_keys):
        yield (
            f"a {kind} with {heads} attention heads and {key_heads} of keys, for sp_size={size}"
            + (f" and tp_size={tp_size}" if tp_size > 1 else ""),
            "in attention every rank has equally many heads",
            f"choose an sp_size that divides {own} and divides, or is a multiple of, {own_keys}",
        )


def _unequal_parts(length: int, size: int) -> str:
    return message(
        given=f"sp_seq_length={length} with sp_size={size}",
        why="every rank has an equally long part of each sequence",
        allowed=f"a length of {max(length // size, 1) * size} or {(length // size + 1) * size}",
        do="change sp_seq_length, and pad or cut sequences to it",
    )


def _other_library(model: torch.nn.Module) -> str:
    return message(
        given=f"a {type(model).__name__}, which has no config that names its attention",
        why="sequence parallel replaces the attention of models of transformers",
        allowed="models of transformers, also with adapters of peft",
        do="use context parallel (cp_size), which divides sequences for any model",
    )


def _other_attention(model: torch.nn.Module, name: str, wanted: str) -> str:
    return message(
        given=f"a {type(model).__name__} with {name!r} attention, and sp_attn_implementation={wanted!r}",
        why="the attention that a model was loaded with is the one it asks for",
        allowed="the same for both, or no sp_attn_implementation",
        do=f"load the model with attn_implementation={wanted!r}, or leave the setting out",
    )
