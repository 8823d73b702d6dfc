"""Models that are divided along axes and not sharded: alone, or in replicas that average their gradients.

Parameters are DTensors, which `DistributedDataParallel` can't reduce; torch's composable `replicate` can. Checkpoints
are those of one process: whole files, which any other run can read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, final

import torch
from torch.distributed._composable.replicate_with_fsdp import replicate
from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict
from torch.distributed.tensor import DTensor

from accelerate.checkpointing.layout import model_names
from accelerate.checkpointing.optimizer_states import names_by_identity, names_of_groups
from accelerate.checkpointing.records import Record
from accelerate.config.enums import DistributedType
from accelerate.strategies.base import One, Setup, refuse_spread_models
from accelerate.strategies.bundle import Bundle
from accelerate.strategies.compile import is_repeated_blocks
from accelerate.strategies.dtensors import DTensorStrategy
from accelerate.strategies.fsdp2.records import WholeModelRecord, WholeOptimizerRecord
from accelerate.strategies.fsdp2.sharding import refuse_wrapped
from accelerate.strategies.fsdp2.states import full_state, whole
from accelerate.strategies.replaced import Replaced
from accelerate.strategies.unwrap import peel

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh


@final
class Divided(DTensorStrategy):
    """A model of which each rank computes a part, or several such models with other data."""

    name = "divided"

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self._replaced = Replaced()
        layout = setup.parallelism
        averaged = layout is not None and (layout.dp_replicate_enabled or any(axis.averages for axis in self.axes))
        self.replicas = layout.view("loss") if layout is not None and averaged else None

    def label(self) -> DistributedType:
        return DistributedType(self.runtime.device.spec.label)

    def check(self, bundle: Bundle) -> None:
        refuse_spread_models(bundle)
        for model in bundle.models:
            if not getattr(model, "_is_accelerate_prepared", False):
                refuse_wrapped(model)
        super().check(bundle)
        self._replaced.refuse_stale(bundle)

    def prepare(self, bundle: Bundle, one: One) -> None:
        for model in bundle.models:
            self._replaced.note(model)
        super().prepare(bundle, one)
        for model in bundle.models:
            self._replaced.forget(model)

    def placed(self, model: torch.nn.Module) -> torch.nn.Module:
        """Put what is not a DTensor on the device; those are on the devices of their mesh."""
        if not any(isinstance(parameter, DTensor) for parameter in model.parameters()):
            return super().placed(model)
        device = self.runtime.device.storage
        for module in model.modules():
            for parameter in module._parameters.values():
                if parameter is not None and not isinstance(parameter, DTensor):
                    parameter.data = parameter.data.to(device)
            for name, buffer in module._buffers.items():
                module._buffers[name] = None if buffer is None else buffer.to(device)
        return model

    def wrap(self, model: torch.nn.Module) -> torch.nn.Module:
        """Let `model` average its gradients with its replicas, block by block while the backward pass goes on."""
        return model if self.replicas is None else replicated(model, self.replicas)

    def state_dict(self, model: torch.nn.Module, *, unwrap: bool = True) -> dict[str, Any]:
        """Return the full state of `model` in host memory on rank 0, an empty dictionary on the others."""
        return full_state(peel(model, parallel=False)[0], self.runtime.topology.is_main)

    def load_state_dict(self, model: torch.nn.Module, state: Mapping[str, Any], **kwargs: Any) -> Any:
        return _load(model, state, broadcast_from_rank0=True, **kwargs)

    def model_records(self, models: Sequence[Any], weights: Sequence[Any], *, safe: bool) -> list[Record]:
        loads = [partial(_load, model) for model in models] + [None] * (len(weights) - len(models))
        keep = self.runtime.topology.is_main
        pairs = enumerate(zip(weights, loads, strict=True))
        return [GatheredModelRecord(index, state, load, keep, safe) for index, (state, load) in pairs]

    def optimizer_records(self, optimizers: Sequence[Any], models: Sequence[Any]) -> list[Record]:
        known = names_by_identity(models)
        keep = self.runtime.topology.is_main
        return [
            WholeOptimizerRecord(index, each, names_of_groups(each, known), keep)
            for index, each in enumerate(optimizers)
        ]


class GatheredModelRecord(WholeModelRecord):
    """A divided model that the main process writes as a whole, in the file of a model that isn't.

    Args:
        keep: this rank writes it.
        safe: write safetensors.
    """

    def __init__(self, index: int, weights: Mapping[str, Any], load: Any, keep: bool, safe: bool) -> None:
        super().__init__(index, weights, load, lambda: whole(weights, keep))
        self.name, self.safe = model_names(index)[0 if safe else 1], safe


def _load(model: torch.nn.Module, state: Mapping[str, Any], **kwargs: Any) -> Any:
    """Load a whole state that every rank has, or with `broadcast_from_rank0` only the main process."""
    options = StateDictOptions(full_state_dict=True, **{"strict": True, **kwargs})
    return set_model_state_dict(peel(model, parallel=False)[0], dict(state), options=options)


def replicated(model: torch.nn.Module, replicas: DeviceMesh) -> torch.nn.Module:
    """Return `model`, which from now on averages its gradients over the ranks of `replicas`, block by block."""
    for block in blocks_of(model):
        replicate(block, mesh=replicas)
    replicate(model, mesh=replicas)
    return model


def blocks_of(model: torch.nn.Module) -> Iterator[torch.nn.Module]:
    """Yield the repeated blocks of a model whose parameters are used nowhere else."""
    for module in model.modules():
        if is_repeated_blocks(module):
            yield from (block for block in module.children() if _is_closed(model, block))


def _is_closed(model: torch.nn.Module, block: torch.nn.Module) -> bool:
    inside, own = set(block.modules()), set(block.parameters())
    others = (module for module in model.modules() if module not in inside)
    return bool(own) and not any(each in own for module in others for each in module.parameters(recurse=False))
