"""Which modules are divided, and how: a plan maps patterns of module names to styles.

In a pattern `*` stands for one part of a dotted name: `layers.*.q_proj`. A style is a name of `STYLES`, or an object
of `torch.distributed.tensor.parallel`. transformers models bring a plan of their own, in the same words.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch.distributed.tensor import DTensor, Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, ParallelStyle, RowwiseParallel

from accelerate.base.messages import did_you_mean, message

#: What a plan may call a style, and what it does to a linear layer or an embedding.
STYLES: Mapping[str, Callable[[], ParallelStyle]] = {
    "colwise": ColwiseParallel,  # its outputs are divided: each rank computes some of the columns
    "rowwise": RowwiseParallel,  # its inputs are divided, its outputs are added up
    "colwise_gather_output": lambda: ColwiseParallel(output_layouts=Replicate()),  # as colwise, put together again
    "rowwise_split_input": lambda: RowwiseParallel(input_layouts=Replicate()),  # as rowwise, of whole inputs
    "embedding_rowwise": lambda: RowwiseParallel(input_layouts=Replicate()),  # each rank knows some of the tokens
}
#: What these names come to for an embedding, whose inputs are never divided.
OF_EMBEDDINGS = {"rowwise": "embedding_rowwise", "colwise": "colwise_gather_output"}


def plan_of(model: torch.nn.Module, given: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the plan for `model`: the one that was given, or its own (`tp_plan`, as transformers models have it).

    Raises:
        ValueError: there is none.
    """
    plan = given if given else getattr(model, "tp_plan", None)
    if plan:
        return dict(plan)
    raise ValueError(
        message(
            given=f"tp_size greater than 1 for a {type(model).__name__} that is not divided yet",
            why="nothing says how to divide its layers",
            allowed="a plan such as {'layers.*.q_proj': 'colwise', 'layers.*.o_proj': 'rowwise'}, a model with a "
            "tp_plan, or one loaded by from_pretrained(..., tp_plan='auto')",
            do="pass ParallelismConfig(tp_size=..., tp_handler=TorchTensorParallelConfig(plan={...}))",
        )
    )


def resolved(model: torch.nn.Module, plan: Mapping[str, Any]) -> dict[str, ParallelStyle]:
    """Return the style of each module that a plan divides, by the module's name, in the order of the modules.

    Raises:
        ValueError: a pattern matches no module, or a style is unknown.
    """
    names = [name for name, _ in model.named_modules() if name]
    chosen: dict[str, Any] = {}
    for pattern, style in plan.items():
        matching = [name for name in names if matches(name, pattern)]
        if not matching:
            raise ValueError(
                message(
                    given=f"the pattern {pattern!r} in a plan for tensor parallel",
                    why=f"no module of {type(model).__name__} has a name that matches",
                    allowed="names of modules, in which * stands for one part: layers.*.q_proj",
                    do=did_you_mean(pattern, names[:400]),
                )
            )
        chosen.update(dict.fromkeys(matching, style))
    return {name: style_of(chosen[name], model.get_submodule(name), name) for name in names if name in chosen}


def matches(name: str, pattern: str) -> bool:
    """Whether a dotted name matches a pattern, part by part."""
    parts, wanted = name.split("."), pattern.split(".")
    return len(parts) == len(wanted) and all(map(fnmatchcase, parts, wanted))


def style_of(style: Any, module: torch.nn.Module, name: str) -> ParallelStyle:
    """Return torch's style for what a plan says of a module."""
    if isinstance(style, ParallelStyle):
        return style
    if isinstance(module, torch.nn.Embedding):
        style = OF_EMBEDDINGS.get(style, style)
    if style not in STYLES:
        raise ValueError(
            message(
                given=f"the style {style!r} for {name} in a plan for tensor parallel",
                why="nothing is known by this name",
                allowed=f"{', '.join(STYLES)}, or a style of torch.distributed.tensor.parallel",
                do=did_you_mean(str(style), STYLES) + " A model with styles of its own is divided when it is loaded by "
                "from_pretrained(..., tp_plan='auto').",
            )
        )
    return STYLES[style]()


def refuse_rest(module: torch.nn.Module, name: str, size: int) -> None:
    """Refuse a layer that the ranks can't have equal parts of.

    Raises:
        ValueError: what is divided of it isn't a multiple of `size`.
    """
    for key, parameter in module.named_parameters(recurse=False):
        if isinstance(parameter, DTensor):
            divided = [placement.dim for placement in parameter.placements if hasattr(placement, "dim")]
            for dim in divided:
                if parameter.shape[dim] % size:
                    raise ValueError(
                        message(
                            given=f"{name}.{key} of shape {tuple(parameter.shape)} with tp_size={size}",
                            why=f"its dim {dim} is not a multiple of {size}, so ranks would hold unequal parts",
                            allowed=f"a tp_size that divides {parameter.shape[dim]}",
                            do="change tp_size, or leave this module out of the plan",
                        )
                    )
