"""A model without code: modules as the names of the tensors in a checkpoint tell them, all on meta.

Files list tensors in any order, so parts are put into the one in which models run: embeddings, then what is counted by
its number, then norms, and heads last.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import nn

from accelerate.big_modeling.checkpoint_file import CheckpointFile

#: Name to shape and dtype.
Layout = Mapping[str, tuple[tuple[int, ...], torch.dtype]]

#: What parts that run before and after the layers have in their names, in the words of published models.
EARLY = ("emb", "wte", "wpe", "shared", "encoder", "patch", "conv_in", "conv1", "vision")
LATE = ("norm", "ln_f", "head", "classifier", "score", "out", "pooler", "cls")


class Part(nn.Module):
    """A module of which nothing is known but what is in it."""


class Block(Part):
    """One of several that are counted, such as `layers.0`; usually a layer with a residual connection."""


#: The classes that are not to be split.
NO_SPLIT = ("Block",)


def layout_of(files: Iterable[CheckpointFile]) -> Layout:
    """Return the tensors of a checkpoint."""
    return {name: (file.shape(name), file.dtype(name)) for file in files for name in file.names()}


def build_skeleton(layout: Layout) -> nn.Module:
    """Return a model with the tensors of `layout` as parameters.

    Args:
        layout: names with shapes and dtypes.
    """
    root = Part()
    for name in sorted(layout, key=_order):
        shape, dtype = layout[name]
        *path, key = name.split(".")
        owner: Any = root
        for step in path:
            if step not in owner._modules:
                owner.add_module(step, Block() if step.isdigit() else Part())
            owner = owner._modules[step]
        owner.register_parameter(key, nn.Parameter(torch.empty(shape, dtype=dtype, device="meta"), requires_grad=False))
    return root


def _order(name: str) -> list[tuple[int, int, str]]:
    """Return what sorts names into the order in which their modules run, as far as names tell."""
    return [_rank(part) for part in name.split(".")]


def _rank(part: str) -> tuple[int, int, str]:
    if part.isdigit():
        return 1, int(part), ""
    if any(word in part for word in EARLY):
        return 0, 0, part
    return (2 if any(word in part for word in LATE) else 1), 0, part
