"""What a plan needs to know of a model: its parameters, the units they are gathered in, the layers that are divided.

Facts are read off the model on any device; no tensor is touched.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import nn
from torch.distributed.tensor.parallel import ColwiseParallel, ParallelStyle, RowwiseParallel

from accelerate.base.messages import message
from accelerate.big_modeling.shapes import Shape
from accelerate.big_modeling.skeleton import Part
from accelerate.big_modeling.sources import Source
from accelerate.big_modeling.stages import even_stages
from accelerate.config.fsdp import FullyShardedDataParallelPlugin
from accelerate.strategies.axes.plan import plan_of, resolved
from accelerate.strategies.fsdp2.units import Units, units_of

#: The unit of what no other unit has: the whole model.
ROOT = -1


@dataclass(frozen=True)
class Subject:
    """The model that a plan is for.

    Args:
        model: on any device; it is not changed.
        shape: the facts about a transformer that activations follow from; None: they are not planned.
        no_split: the classes of the blocks that become units.
        tp_plan: how tensor parallel divides it; by default as the model says.
    """

    model: nn.Module
    shape: Shape | None = None
    no_split: tuple[str, ...] = ()
    tp_plan: Mapping[str, Any] | None = None

    @classmethod
    def of(cls, source: Source, tp_plan: Mapping[str, Any] | None = None) -> Subject:
        """Return what a person has named; all numbers of a model that was read from its files are trained."""
        for parameter in source.model.parameters() if isinstance(source.model, Part) else ():
            parameter.requires_grad_(parameter.is_floating_point())
        return cls(source.model, Shape.of(source.config), source.no_split, tp_plan)


@dataclass(frozen=True)
class Parameter:
    """One parameter, or one that several modules share.

    Args:
        name: its first name.
        shape: its shape in the whole model.
        dim: the dim that tensor parallel divides; None: it is whole on every rank.
        unit: the number of its unit.
        stages: the stages of a pipeline that use it.
        is_trained: it has a gradient.
        is_matrix: autocast computes with a copy of it in 16 bits.
    """

    name: str
    shape: tuple[int, ...]
    dim: int | None
    unit: int
    stages: frozenset[int]
    is_trained: bool
    is_matrix: bool

    def on_rank(self, tp: int) -> tuple[int, ...]:
        """Return its shape on a rank of tensor parallel."""
        return tuple(size // tp if dim == self.dim else size for dim, size in enumerate(self.shape))


@dataclass(frozen=True)
class Layer:
    """A layer that tensor parallel divides; widths are numbers for each token, 0 where nothing of the kind is sent.

    Args:
        adds: the width of outputs that are added up in the forward pass.
        gathers: the width of outputs that are gathered in it.
        returns: the width of inputs whose gradients are added up in the backward pass.
        is_embedding: its outputs have the dtype of the residual stream.
        in_block: it is part of a block.
        is_last_of_block: nothing of its block is kept after it.
        stage: the stage of a pipeline that computes it.
    """

    adds: int
    gathers: int
    returns: int
    is_embedding: bool
    in_block: bool
    is_last_of_block: bool
    stage: int


@dataclass(frozen=True)
class Facts:
    """What a plan needs to know of a model on a mesh.

    Args:
        parameters: all of them.
        reshards: of each unit, whether it frees what it gathered, if units do at all; the root never does.
        blocks: of each stage of a pipeline, how many blocks it has.
        layers: those that tensor parallel divides.
        buffers: their bytes.
    """

    parameters: tuple[Parameter, ...]
    reshards: tuple[bool, ...]
    blocks: tuple[int, ...]
    layers: tuple[Layer, ...] = ()
    buffers: int = 0
    _by_stage: dict[int, tuple[Parameter, ...]] = field(default_factory=dict)

    def of_stage(self, stage: int) -> tuple[Parameter, ...]:
        """Return the parameters that a stage of a pipeline uses."""
        if stage not in self._by_stage:
            self._by_stage[stage] = tuple(each for each in self.parameters if stage in each.stages)
        return self._by_stage[stage]


def facts_of(subject: Subject, *, pp: int = 1, tp: int = 1) -> Facts:
    """Return the facts of a model that is divided into `pp` stages, and its layers over `tp` ranks.

    Raises:
        ValueError: it can't be divided like that.
    """
    model, units = subject.model, units_for(subject)
    if pp > 1:  # each stage is sharded by itself, and has no ends of its own
        units = Units(units.blocks)
    styles = resolved(model, plan_of(model, subject.tp_plan)) if tp > 1 else {}
    stages = Stages(model, pp)
    named = list(model.named_parameters(remove_duplicate=False))
    names = {each: name for name, each in reversed(named)}
    used: dict[nn.Parameter, set[int]] = {}
    for name, each in named:
        used.setdefault(each, set()).add(stages.of(name))
    unit_of = _unit_of(units)
    dims: dict[nn.Parameter, int] = {}
    for name, style in styles.items():
        dims.update(_divided(model.get_submodule(name), style))
    _refuse_rests(dims, names, tp)
    matrices = {each.weight for each in model.modules() if isinstance(each, (nn.Linear, nn.Conv1d, nn.Conv2d))}
    path_of = {module: name for name, module in model.named_modules()}
    blocks = [stages.of(path_of[unit[0]]) for unit in units.blocks]
    return Facts(
        parameters=tuple(
            Parameter(
                names[each],
                tuple(each.shape),
                dims.get(each),
                unit_of.get(each, ROOT),
                frozenset(used[each]),
                each.requires_grad and each.is_floating_point(),
                each in matrices,
            )
            for each in model.parameters()
        ),
        reshards=(*[True] * (len(units.blocks) + len(units.ends) - 1), not units.ends)[
            : len(units.blocks + units.ends)
        ],
        blocks=tuple(blocks.count(stage) for stage in range(pp)),
        layers=tuple(_layers(model, styles, units, stages)),
        buffers=sum(each.numel() * each.element_size() for each in model.buffers()),
    )


def units_for(subject: Subject) -> Units:
    """Return the units as FSDP has them that makes units of transformer blocks."""
    plugin = plugin_for(subject)
    plugin.set_auto_wrap_policy(subject.model)
    return units_of(subject.model, plugin.auto_wrap_policy)


def plugin_for(subject: Subject, **settings: Any) -> FullyShardedDataParallelPlugin:
    """Return the settings of FSDP that a plan is made for; `settings` are further ones."""
    present = {type(each).__name__ for each in subject.model.modules()}
    classes = [name for name in subject.no_split if name in present]
    if classes:
        settings |= {"auto_wrap_policy": "TRANSFORMER_BASED_WRAP", "transformer_cls_names_to_wrap": classes}
    return FullyShardedDataParallelPlugin(fsdp_version=2, **settings)


class Stages:
    """Which stage of a pipeline a module or parameter belongs to: stages of even size, as a pipeline has them.

    Raises:
        ValueError: the model has fewer parts.
    """

    def __init__(self, model: nn.Module, count: int) -> None:
        self.found = even_stages(model, count) if count > 1 else {}

    def of(self, name: str) -> int:
        """Return the stage of a module or parameter by its name."""
        while name and name not in self.found:
            name = name.rpartition(".")[0]
        return self.found.get(name, 0)


def _unit_of(units: Units) -> dict[nn.Parameter, int]:
    """Return the number of the unit of each parameter: the first that has it, since inner ones come first."""
    found: dict[nn.Parameter, int] = {}
    for number, unit in enumerate((*units.blocks, *units.ends)):
        for module in unit:
            for parameter in module.parameters():
                found.setdefault(parameter, number)
    return found


def _divided(module: nn.Module, style: ParallelStyle) -> Iterator[tuple[nn.Parameter, int]]:
    """Yield the parameters of a module that a style divides, with the dim that it divides."""
    is_embedding, by_columns = isinstance(module, nn.Embedding), isinstance(style, ColwiseParallel)
    for name, parameter in module.named_parameters(recurse=False):
        if is_embedding:
            yield parameter, 1 if by_columns else 0
        elif by_columns:
            yield parameter, 0
        elif name == "weight":
            yield parameter, 1


def _refuse_rests(dims: Mapping[nn.Parameter, int], names: Mapping[nn.Parameter, str], tp: int) -> None:
    """Refuse parameters that the ranks can't have equal parts of, as :func:`axes.plan.refuse_rest` does in a run."""
    for parameter, dim in dims.items():
        size = parameter.shape[dim]
        if size % tp:
            fit = [each for each in range(1, 2 * tp) if size % each == 0]
            raise ValueError(
                message(
                    given=f"tp={tp} for {names[parameter]} of shape {tuple(parameter.shape)}",
                    why=f"its dim {dim} is not a multiple of {tp}, so ranks would hold unequal parts",
                    allowed=f"a size that divides {size}, such as {', '.join(map(str, fit))}",
                    do="change tp, or leave this module out of the plan for tensor parallel",
                )
            )


def _layers(model: nn.Module, styles: Mapping[str, ParallelStyle], units: Units, stages: Stages) -> Iterator[Layer]:
    """Yield the layers that are divided, in the order of their definition."""
    block_of = {
        module: number for number, unit in enumerate(units.blocks) for each in unit for module in each.modules()
    }
    last = {block_of.get(model.get_submodule(name)): name for name in styles}
    for name, style in styles.items():
        module: Any = model.get_submodule(name)
        is_embedding = isinstance(module, nn.Embedding)
        if not isinstance(module, (nn.Linear, nn.Embedding)) or not isinstance(
            style, (ColwiseParallel, RowwiseParallel)
        ):
            raise ValueError(_not_counted(name, module, style))
        outputs = int(module.embedding_dim if is_embedding else module.out_features)  # type: ignore[arg-type]
        inputs = 0 if is_embedding else int(module.in_features)  # type: ignore[arg-type]
        by_columns = isinstance(style, ColwiseParallel)
        block = block_of.get(module)
        yield Layer(
            adds=0 if by_columns else outputs,
            gathers=outputs if by_columns and style.output_layouts[0].is_replicate() else 0,
            returns=inputs if by_columns else 0,
            is_embedding=is_embedding,
            in_block=block is not None,
            is_last_of_block=block is not None and last[block] == name,
            stage=stages.of(name),
        )


def _not_counted(name: str, module: nn.Module, style: ParallelStyle) -> str:
    return message(
        given=f"{type(style).__name__} for {name}, a {type(module).__name__}, in a plan for tensor parallel",
        why="what it sends depends on what the model does around it",
        allowed="linear layers and embeddings, divided by columns or by rows",
        do="leave it out of the plan that is estimated; what it leaves out is whole on every rank",
    )
