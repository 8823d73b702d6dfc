"""Tensor parallel: the matrices of layers divided over the ranks of an axis, which compute each layer together.

A plan says which modules are divided and how; torch's styles do it, with DTensors. A model that transformers has
divided while loading (`from_pretrained(..., tp_plan="auto")`) is taken as it is. What the plan leaves out is whole on
every rank, with equal gradients.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, final

import torch
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ParallelStyle, parallelize_module

from accelerate.base.messages import message
from accelerate.strategies.axes.base import Axis, Place
from accelerate.strategies.axes.outside import replicate_rest
from accelerate.strategies.axes.plan import plan_of, refuse_rest, resolved
from accelerate.strategies.fsdp2.begin import Beginning, begin

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

    from accelerate.strategies.bundle import Bundle


@final
class Tensor(Axis):
    """Layers divided over ranks."""

    name = "tp"

    def __init__(self, place: Place) -> None:
        super().__init__(place)
        self.given = getattr(place.settings, "plan", None)
        #: Sharding, or replicas, make DTensors of everything; alone, this axis has to.
        self.alone = place.layout.view("loss") is None

    def check(self, bundle: Bundle) -> None:
        for model in bundle.models:
            if getattr(model, "_is_accelerate_prepared", False):
                continue
            size = divided_by(model)
            if size == 1:
                resolved(model, plan_of(model, self.given))
            else:
                self._check_divided(model, size)

    def _check_divided(self, model: torch.nn.Module, size: int) -> None:
        """Refuse a model that was divided while it was loaded in a way that doesn't fit the mesh of this run."""
        given = why = None
        if size != self.mesh.size():
            given = f"a {type(model).__name__} divided over {size} ranks with tp_size={self.mesh.size()}"
            why = "the model was divided for another number of processes when it was loaded"
        elif not self.alone and mesh_of(model)._get_root_mesh() is not self.mesh._get_root_mesh():
            given = f"a {type(model).__name__} that was divided when it was loaded, with replicas or shards besides"
            why = "it was divided on a mesh of its own, which has no axes for them"
        if given is not None and why is not None:
            raise ValueError(
                message(
                    given=given,
                    why=why,
                    allowed="a model that isn't divided yet, or without replicas and shards one divided over tp_size",
                    do="load it without tp_plan: `prepare` divides it as its tp_plan says",
                )
            )

    def prepare_model(self, model: torch.nn.Module) -> torch.nn.Module:
        mesh = self.mesh
        if divided_by(model) == 1:
            self._divide(model)
        else:
            mesh = mesh_of(model)
        if self.alone:
            replicate_rest(model, mesh)
        return model

    def _divide(self, model: torch.nn.Module) -> None:
        """Divide a model as the plan says, module by module, so that no more than one is whole on the device."""
        styles = resolved(model, plan_of(model, self.given))
        runtime = self.place.runtime
        beginning = begin(model, runtime.collectives, runtime.device.storage, only_main=self.place.only_main)
        divide_from(model, styles, self.mesh, beginning)
        if not self.place.layout.dp_shard_enabled:  # sharding goes through the rest itself, unit by unit
            beginning.place(model.modules())


def divide_from(
    model: torch.nn.Module, styles: Mapping[str, ParallelStyle], mesh: DeviceMesh, beginning: Beginning
) -> None:
    """Divide the modules that `styles` names over the ranks of `mesh`, with the values that `beginning` says."""
    divided: dict[torch.Tensor, torch.nn.Parameter] = {}
    for name, style in styles.items():
        module = model.get_submodule(name)
        _place(module, beginning, divided)
        before = dict(module.named_parameters(recurse=False))
        parallelize_module(module, mesh, style, src_data_rank=None)
        refuse_rest(module, name, mesh.size())
        _tie_again(module, name, before, divided)
    _refuse_half_tied(model, divided)


def _place(module: torch.nn.Module, beginning: Beginning, divided: dict[torch.Tensor, torch.nn.Parameter]) -> None:
    """Give `module` the weights to begin with, unless it shares them with one that has been divided."""
    if not any(parameter in divided for parameter in module.parameters(recurse=False)):
        beginning.place([module])


def _tie_again(
    module: torch.nn.Module, name: str, before: dict[str, Any], divided: dict[torch.Tensor, torch.nn.Parameter]
) -> None:
    """Let parameters that were one before be one again, and note what each has become."""
    for key, old in before.items():
        new: Any = module._parameters[key]
        known: Any = divided.setdefault(old, new)
        if known is not new and known.placements != new.placements:
            raise ValueError(
                message(
                    given=f"a plan that divides {name}.{key} otherwise than the module it shares this parameter with",
                    why="one parameter can only be divided in one way",
                    allowed="styles that divide it alike: embedding_rowwise and colwise for tied embeddings",
                    do="change one of the two styles",
                )
            )
        module._parameters[key] = known


def _refuse_half_tied(model: torch.nn.Module, divided: dict[torch.Tensor, torch.nn.Parameter]) -> None:
    for name, parameter in model.named_parameters(remove_duplicate=False):
        if divided.get(parameter, parameter) is not parameter:
            raise ValueError(
                message(
                    given=f"a plan without {name.rpartition('.')[0]}, which shares its parameter with a module of it",
                    why="the two would be different parameters afterwards",
                    allowed="plans that name every module that uses a parameter they divide",
                    do=f"add {name.rpartition('.')[0]!r} to the plan",
                )
            )


def divided_by(model: torch.nn.Module) -> int:
    """Return over how many ranks a model was divided when it was loaded; 1: not yet."""
    sizes = [each.device_mesh.size() for each in model.parameters() if isinstance(each, DTensor)]
    return max(sizes, default=1)


def mesh_of(model: torch.nn.Module) -> DeviceMesh:
    """Return the mesh that a model was divided on when it was loaded."""
    mesh: DeviceMesh = next(each.device_mesh for each in model.parameters() if isinstance(each, DTensor))
    return mesh
