"""Parameters, gradients and optimizer states sharded over the ranks: `torch.distributed.fsdp.fully_shard`.

Between steps each rank holds 1/N of everything. Micro-batches of one update reduce their gradients each, so that no
rank ever holds whole ones; `Accelerator.no_sync` trades that memory for communication when a script asks for it.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, final

import torch
from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict

from accelerate.checkpointing.optimizer_states import names_by_identity, names_of_groups
from accelerate.checkpointing.records import Record
from accelerate.config.enums import DistributedType
from accelerate.strategies.base import One, Setup, refuse_spread_models
from accelerate.strategies.bundle import Bundle
from accelerate.strategies.compile import compile_model
from accelerate.strategies.dtensors import DTensorStrategy
from accelerate.strategies.fsdp2.records import (
    ShardedModelRecord,
    ShardedOptimizerRecord,
    WholeModelRecord,
    WholeOptimizerRecord,
)
from accelerate.strategies.fsdp2.sharding import refuse_wrapped, shard_model, shard_states
from accelerate.strategies.fsdp2.states import full_state, whole
from accelerate.strategies.mesh import flat_mesh
from accelerate.strategies.relink import relinked
from accelerate.strategies.replaced import Replaced
from accelerate.strategies.unwrap import peel

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh


@final
class FullyShard(DTensorStrategy):
    """Sharded parameters, each by itself."""

    name = "fsdp2"

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self.plugin = setup.fsdp_plugin
        if self.precision.spec.compute is not None:
            self.plugin.set_mixed_precision(self.precision.spec.name)
        self._replaced = Replaced()
        self._sharded: weakref.WeakSet[torch.nn.Module] = weakref.WeakSet()

    @cached_property
    def mesh(self) -> DeviceMesh:
        """The mesh that parameters are sharded over: one axis, or two of which the first holds replicas."""
        layout, mesh = self.setup.parallelism, self.setup.mesh
        if layout is None or mesh is None:
            return flat_mesh(self.runtime)
        if not (layout.cp_enabled or layout.sp_enabled):
            return mesh[tuple(layout.dp_dim_names)]
        shards = layout.view("shard")  # torch warns where such a view is taken out of the mesh by name
        return mesh[tuple(layout.fsdp_dim_names)] if layout.dp_replicate_enabled or shards is None else shards

    def label(self) -> DistributedType:
        return DistributedType.FSDP

    def check(self, bundle: Bundle) -> None:
        super().check(bundle)
        refuse_spread_models(bundle)
        self._replaced.refuse_stale(bundle)

    def prepare(self, bundle: Bundle, one: One) -> None:
        self.prepare_data_loaders(bundle, one)
        prepared = one._prepare_fsdp2(*(slot.value for slot in bundle.slots))
        for slot, value in zip(bundle.slots, prepared, strict=True):
            slot.value = value

    def prepare_together(self, bundle: Bundle, one: One, shard: Callable[[torch.nn.Module], torch.nn.Module]) -> None:
        for slot in bundle.of_kind("data_loader"):
            slot.value = one.prepare_data_loader(slot.value)
        with relinked(bundle.models, bundle.optimizers, release=True) as models:
            for place, slot in enumerate(bundle.of_kind("model")):
                slot.value = models[place] = one.prepare_model(self._sharded_by(shard, slot.value))
        shard_states(bundle.optimizers)
        for slot in bundle.of_kind("optimizer"):
            slot.value = one.prepare_optimizer(slot.value, device_placement=False)
        for slot in bundle.of_kind("scheduler"):
            slot.value = one.prepare_scheduler(slot.value)

    def prepare_model(
        self, model: torch.nn.Module, *, place: bool, autocast: bool, evaluation_mode: bool
    ) -> torch.nn.Module:
        if model not in self._sharded:
            model = self._sharded_by(self.shard, model)
        model = self.precision.prepare_model(model, self.runtime.device, autocast=autocast)
        return compile_model(model, self.setup.dynamo)

    def _sharded_by(self, shard: Callable[[torch.nn.Module], torch.nn.Module], model: torch.nn.Module) -> Any:
        """Return what `shard` makes of a model that isn't prepared yet, and remember the parameters it had."""
        if getattr(model, "_is_accelerate_prepared", False):
            return model
        refuse_wrapped(model)
        self._replaced.note(model)
        sharded = shard(self.divide(model))
        self._replaced.forget(sharded)
        self._sharded.add(sharded)
        return sharded

    def shard(self, model: torch.nn.Module) -> torch.nn.Module:
        """Shard a bare model in place as the plugin says now, and return it."""
        return shard_model(model, self.plugin, self.mesh, self.runtime)

    def no_sync_in_window(self, model: torch.nn.Module) -> AbstractContextManager[Any]:
        return nullcontext()  # gradients stay sharded between the micro-batches of an update

    def state_dict(self, model: torch.nn.Module, *, unwrap: bool = True) -> dict[str, Any]:
        """Return the full state of `model` in host memory on rank 0, an empty dictionary on the others."""
        return full_state(peel(model, parallel=False)[0] if unwrap else model, self.runtime.topology.is_main)

    def model_records(self, models: Sequence[Any], weights: Sequence[Any], *, safe: bool) -> list[Record]:
        loads = [partial(self.load_whole, model) for model in models] + [None] * (len(weights) - len(models))
        numbered = list(enumerate(zip(weights, loads, strict=True)))
        if self._by_shard:
            return [ShardedModelRecord(index, *each) for index, each in numbered]
        keep = self.runtime.topology.is_main
        return [WholeModelRecord(index, state, load, partial(whole, state, keep)) for index, (state, load) in numbered]

    def optimizer_records(self, optimizers: Sequence[Any], models: Sequence[Any]) -> list[Record]:
        known = names_by_identity(models)
        named = [(index, each, names_of_groups(each, known)) for index, each in enumerate(optimizers)]
        if self._by_shard:
            return [ShardedOptimizerRecord(*each) for each in named]
        return [WholeOptimizerRecord(*each, self.runtime.topology.is_main) for each in named]

    @property
    def _by_shard(self) -> bool:
        """Whether checkpoints are laid out by shard, as the plugin says now."""
        return self.plugin.state_dict_type.name == "SHARDED_STATE_DICT"

    def load_whole(self, model: torch.nn.Module, state: Mapping[str, Any], **kwargs: Any) -> Any:
        """Load a whole state that every rank has."""
        options = StateDictOptions(full_state_dict=True, strict=bool(kwargs.pop("strict", True)))
        return set_model_state_dict(peel(model, parallel=False)[0], dict(state), options=options)

    def load_state_dict(self, model: torch.nn.Module, state: Mapping[str, Any], **kwargs: Any) -> Any:
        options = StateDictOptions(
            full_state_dict=True, broadcast_from_rank0=True, strict=bool(kwargs.pop("strict", True))
        )
        return set_model_state_dict(peel(model, parallel=False)[0], dict(state), options=options)
