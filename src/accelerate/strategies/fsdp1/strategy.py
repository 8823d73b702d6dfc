"""Parameters, gradients and optimizer states sharded over the ranks: torch's `FullyShardedDataParallel`.

The first generation of FSDP, which the public API still begins with. The parameters of a unit are one flat tensor, of
which each rank keeps its part; micro-batches reduce their gradients each, so that no rank holds whole ones.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, final

import torch
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler

from accelerate.base.messages import message
from accelerate.checkpointing.records import Record
from accelerate.config.enums import DistributedType, DynamoBackend
from accelerate.strategies.base import One, Setup, Strategy, refuse_spread_models
from accelerate.strategies.bundle import Bundle
from accelerate.strategies.compile import compile_model, is_compiled_module
from accelerate.strategies.fsdp1.flat import Held, Shards, names_of
from accelerate.strategies.fsdp1.records import (
    FlatModelRecord,
    FlatOptimizerRecord,
    LocalModelRecord,
    WholeFlatModelRecord,
    WholeFlatOptimizerRecord,
    load_of_main,
    load_whole,
    state_of,
)
from accelerate.strategies.fsdp1.wrapping import HYBRID, wrap_model
from accelerate.strategies.fsdp2.states import whole
from accelerate.strategies.mesh import flat_mesh, machines_mesh
from accelerate.strategies.relink import relinked
from accelerate.strategies.replaced import Replaced
from accelerate.strategies.unwrap import compiled_again, peel

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh


@final
class FullySharded(Strategy):
    """Sharded parameters, flattened unit by unit."""

    name = "fsdp1"

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self.plugin = setup.fsdp_plugin
        if self.precision.spec.compute is not None:
            self.plugin.set_mixed_precision(self.precision.spec.name)
        self._check_layout()
        if type(self.precision.scaler) is torch.amp.GradScaler:  # one overflow has to be seen by all ranks
            handler = self.precision.options.scaler
            device = self.runtime.device.torch_device.type
            self.precision.scaler = ShardedGradScaler(device, **({} if handler is None else handler.to_kwargs()))
        self._wrappers: dict[int, weakref.ref[torch.nn.Module]] = {}
        self._shards = Shards()
        self._replaced = Replaced()

    def _check_layout(self) -> None:
        layout, hybrid = self.setup.parallelism, self.plugin.sharding_strategy.name in HYBRID
        if layout is None or self.setup.mesh is None:
            return
        if self.axes or (layout.dp_replicate_enabled and not hybrid):
            raise ValueError(
                message(
                    given=f"{' x '.join(layout.active_mesh_dims)} with fsdp_version=1",
                    why="the first generation of FSDP shares no mesh with other axes, and replicates shards only as "
                    "HYBRID_SHARD",
                    allowed="dp_shard_size; dp_replicate_size too with sharding_strategy='HYBRID_SHARD'; any axis "
                    "with fsdp_version=2",
                    do="pass FullyShardedDataParallelPlugin(fsdp_version=2)",
                )
            )

    @cached_property
    def mesh(self) -> DeviceMesh:
        """The mesh that parameters are sharded over: one axis, or for hybrid strategies replicas and shards."""
        layout, mesh = self.setup.parallelism, self.setup.mesh
        if self.plugin.sharding_strategy.name not in HYBRID:
            return flat_mesh(self.runtime) if layout is None or mesh is None else mesh[tuple(layout.dp_dim_names)]
        if layout is not None and mesh is not None and layout.dp_replicate_enabled:
            return mesh[tuple(layout.dp_dim_names)]
        return machines_mesh(self.runtime)

    def label(self) -> DistributedType:
        return DistributedType.FSDP

    def check(self, bundle: Bundle) -> None:
        super().check(bundle)
        refuse_spread_models(bundle)
        self._replaced.refuse_stale(bundle)
        compiles = self.setup.dynamo.backend != DynamoBackend.NO or any(map(is_compiled_module, bundle.models))
        if compiles and not self.plugin.use_orig_params:
            raise ValueError(
                message(
                    given="torch.compile with fsdp_version=1 and use_orig_params=False",
                    why="a compiled graph needs the parameters themselves, not the flat tensor they are parts of",
                    allowed="use_orig_params=True, or fsdp_version=2",
                    do="pass FullyShardedDataParallelPlugin(use_orig_params=True)",
                )
            )

    def prepare(self, bundle: Bundle, one: One) -> None:
        self.prepare_data_loaders(bundle, one)
        if self.plugin.use_orig_params:
            with relinked(bundle.models, bundle.optimizers):
                self._prepare_models(bundle, one)
        else:
            self._prepare_flat(bundle, one)
        for slot in bundle.of_kind("optimizer"):
            slot.value = one.prepare_optimizer(slot.value, device_placement=False)
        for slot in bundle.of_kind("scheduler"):
            slot.value = one.prepare_scheduler(slot.value)

    def _prepare_models(self, bundle: Bundle, one: One) -> list[Any]:
        for slot in bundle.of_kind("model"):
            slot.value = one.prepare_model(slot.value)
        return [self.wrapper_of(model) for model in bundle.models]

    def _prepare_flat(self, bundle: Bundle, one: One) -> None:
        """Wrap the models of `bundle`, and point its optimizers at the flat parameters."""
        held = [Held(each, bundle.models) for each in bundle.optimizers]
        roots = self._prepare_models(bundle, one)
        for each in held:
            each.link(roots)

    def prepare_model(
        self, model: torch.nn.Module, *, place: bool, autocast: bool, evaluation_mode: bool
    ) -> torch.nn.Module:
        model, compiled = peel(model, parallel=False)
        if not isinstance(model, FullyShardedDataParallel):
            self._replaced.note(model)
            bare, model = model, wrap_model(model, self.plugin, self.mesh, self.runtime)
            self._replaced.forget(model)
            self._wrappers[id(bare)] = weakref.ref(model)
        self._shards.add(model)
        model = self.precision.prepare_model(model, self.runtime.device, autocast=autocast)
        return compile_model(compiled_again(model, compiled), self.setup.dynamo)

    def wrapper_of(self, model: Any) -> Any:
        """Return the wrapper of a model: of a compiled one, or of the bare one."""
        model = peel(model, parallel=False)[0]
        wrapper = self._wrappers.get(id(model))
        return model if wrapper is None else wrapper() or model

    def no_sync(self, model: torch.nn.Module) -> AbstractContextManager[Any]:
        context: AbstractContextManager[Any] = self.wrapper_of(model).no_sync()
        return context

    def no_sync_in_window(self, model: torch.nn.Module) -> AbstractContextManager[Any]:
        return nullcontext()  # gradients stay sharded between the micro-batches of an update

    def clip_grad_norm_(
        self, parameters: Iterable[torch.Tensor], max_norm: float, norm_type: float = 2
    ) -> torch.Tensor:
        return self._shards.clip_grad_norm_(parameters, max_norm, norm_type)

    def state_dict(self, model: torch.nn.Module, *, unwrap: bool = True) -> dict[str, Any]:
        """Return the full state of `model` in host memory on rank 0, an empty dictionary on the others."""
        return whole(state_of(self.wrapper_of(model)), self.runtime.topology.is_main)

    def weights(self, model: torch.nn.Module) -> dict[str, Any]:
        return state_of(self.wrapper_of(model))

    def load_state_dict(self, model: torch.nn.Module, state: Mapping[str, Any], **kwargs: Any) -> Any:
        return load_of_main(self.wrapper_of(model), state, self.runtime.collectives, **kwargs)

    def model_records(self, models: Sequence[Any], weights: Sequence[Any], *, safe: bool) -> list[Record]:
        roots = [self.wrapper_of(model) for model in models] + [None] * (len(weights) - len(models))
        return [self._model_record(*each) for each in zip(range(len(weights)), weights, roots, strict=True)]

    def _model_record(self, index: int, weights: Mapping[str, Any], root: Any) -> Record:
        load = None if root is None else partial(load_whole, root)
        if self._layout == "FULL_STATE_DICT":
            return WholeFlatModelRecord(index, weights, load, root, self.runtime.topology.is_main)
        if self._layout == "LOCAL_STATE_DICT" and root is not None:
            return LocalModelRecord(index, weights, load, root, self.runtime.topology.rank)
        return FlatModelRecord(index, weights, load, root)

    def optimizer_records(self, optimizers: Sequence[Any], models: Sequence[Any], *, first: int = 0) -> list[Record]:
        """Return the records of optimizers, numbered from `first` on."""
        roots = [self.wrapper_of(model) for model in models]
        records: list[Record] = []
        for index, optimizer in enumerate(optimizers, first):
            names, root = names_of(optimizer, roots), trained_by(optimizer, roots)
            if self._layout == "FULL_STATE_DICT":
                keep = self.runtime.topology.is_main
                records.append(WholeFlatOptimizerRecord(index, optimizer, names, root, keep))
            else:
                records.append(FlatOptimizerRecord(index, optimizer, names, root))
        return records

    @property
    def _layout(self) -> str:
        """How checkpoints are laid out, as the plugin says now."""
        return str(self.plugin.state_dict_type.name)


def trained_by(optimizer: Any, roots: Sequence[torch.nn.Module]) -> torch.nn.Module:
    """Return the wrapped model whose parameters an optimizer holds.

    Raises:
        ValueError: it holds those of none, or of several.
    """
    held = {id(each) for group in optimizer.param_groups for each in group["params"]}
    found = [root for root in roots if any(id(each) in held for each in root.parameters())]
    if len(found) == 1:
        return found[0]
    raise ValueError(
        message(
            given=f"a {type(optimizer).__name__} with parameters of {len(found)} prepared models",
            why="the state of flat parameters is taken apart by the model they belong to",
            allowed="one model for each optimizer; any with fsdp_version=2",
            do="build an optimizer for each model",
        )
    )
