"""Models whose layers are divided over the ranks of a pipeline, alone or in replicas that average their gradients.

Each rank holds the parameters of its stages; of the others it knows the shapes. Checkpoints are those of one
process: the main process gathers and writes them, and every rank reads what is its own.
"""

from __future__ import annotations

import copy
import dataclasses
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any, cast, final

import torch
import torch.distributed as dist
from torch.distributed._composable.replicate_with_fsdp import replicate
from torch.distributed.tensor import DTensor, distribute_tensor

from accelerate.base.messages import message
from accelerate.checkpointing.layout import model_names
from accelerate.checkpointing.optimizer_states import names_by_identity, names_of_groups, parameters_of
from accelerate.checkpointing.problems import shortened
from accelerate.checkpointing.records import Record
from accelerate.checkpointing.source import Source
from accelerate.config.enums import DistributedType, DynamoBackend
from accelerate.strategies import norms
from accelerate.strategies.axes.combinations import refuse_others, refuse_shared
from accelerate.strategies.axes.elsewhere import is_elsewhere, multiply_
from accelerate.strategies.axes.parts import Part
from accelerate.strategies.axes.pipeline import Fitting, Pipeline, Pipelined
from accelerate.strategies.axes.select import combined
from accelerate.strategies.base import One, Setup, Strategy, refuse_spread_models
from accelerate.strategies.bundle import Bundle
from accelerate.strategies.compile import compile_model
from accelerate.strategies.fsdp2.records import WholeModelRecord, WholeOptimizerRecord
from accelerate.strategies.fsdp2.sharding import shard_model
from accelerate.strategies.fsdp2.units import ignored_modules_of
from accelerate.strategies.mesh import collectives_over
from accelerate.strategies.relink import canonical_name
from accelerate.strategies.unwrap import peel


@final
class Staged(Strategy):
    """A pipeline, or several with other data."""

    name = "staged"

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        refuse_others(setup)
        assert setup.parallelism is not None
        self.layout, self.plugin = setup.parallelism, setup.fsdp_plugin
        if self.plugin is not None and self.precision.spec.compute is not None:
            self.plugin.set_mixed_precision(self.precision.spec.name)
        self.pipeline = next(axis for axis in self.axes if isinstance(axis, Pipeline))
        self._optimizers: weakref.WeakSet[torch.optim.Optimizer] = weakref.WeakSet()

    def label(self) -> DistributedType:
        return DistributedType(self.runtime.device.spec.label)

    def check(self, bundle: Bundle) -> None:
        super().check(bundle)
        refuse_spread_models(bundle)

    def prepare(self, bundle: Bundle, one: One) -> None:
        super().prepare(bundle, one)
        self._optimizers.update(bundle.optimizers)

    def prepare_model(
        self, model: torch.nn.Module, *, place: bool, autocast: bool, evaluation_mode: bool
    ) -> torch.nn.Module:
        """Return a model that runs in a pipeline; where its parts go is settled when it is first called."""
        if isinstance(model, Pipelined):
            return model
        self.pipeline.note(model)
        pipelined: Any = self.divide(model)
        self.precision.prepare_model(pipelined.module, self.runtime.device, autocast=False)
        if self.setup.dynamo.use_regional_compilation:
            compile_model(pipelined.module, self.setup.dynamo)
        scaler = self.precision.scaler
        pipelined.fitting = Fitting(
            place=self._place,
            compile=self._compile,
            context=self.precision.forward_context if autocast else nullcontext,
            scale=scaler.get_scale if scaler is not None and scaler.is_enabled() else None,
            optimizers=lambda: list(self._optimizers),
            average=self._averaged,
        )
        return cast("torch.nn.Module", pipelined)

    def _place(self, model: torch.nn.Module, parts: Sequence[Part]) -> None:
        """Put the parts of a rank on the device: sharded, in replicas of DTensors, or whole."""
        replicas = self.layout.view("loss")
        if self.plugin is not None:
            self._shard(model, parts)
            return
        for part in parts:
            for tensor in (*part.parameters(), *part.buffers()):
                if not isinstance(tensor, DTensor):
                    tensor.data = tensor.data.to(self.runtime.device.storage)
            if replicas is not None and self.layout.tp_enabled:
                replicate(part, mesh=replicas)

    def _shard(self, model: torch.nn.Module, parts: Sequence[Part]) -> None:
        """Shard each part by itself, in the units that the plugin says for the whole model."""
        assert self.setup.mesh is not None
        refuse_shared(model, parts)
        self.plugin.set_auto_wrap_policy(model)
        plugin = copy.copy(self.plugin)
        ignored = ignored_modules_of(model, plugin.ignored_modules)
        view = self.layout.view("data")
        assert view is not None
        runtime = dataclasses.replace(self.runtime, collectives=collectives_over(view, self.runtime))
        for part in parts:
            inside = set(part.modules())
            plugin.ignored_modules = [each for each in ignored if each in inside]
            shard_model(part, plugin, self.setup.mesh[tuple(self.layout.dp_dim_names)], runtime)

    def _compile(self, module: torch.nn.Module) -> None:
        dynamo = self.setup.dynamo
        if dynamo.backend != DynamoBackend.NO and not dynamo.use_regional_compilation:
            module.compile(**dynamo.to_kwargs())

    def _averaged(self, release: torch.nn.Module) -> torch.nn.Module:
        """Let the ranks that compute the same stages average their gradients when these are handed out."""
        replicas = self.layout.view("loss")
        by_themselves = self.plugin is not None or self.layout.tp_enabled
        if replicas is None or by_themselves or not any(True for _ in release.parameters()):
            return release
        handler = self.setup.ddp_handler
        kwargs = handler.to_kwargs() if handler is not None else {}
        wrapped = torch.nn.parallel.DistributedDataParallel(release, process_group=replicas.get_group(), **kwargs)
        if handler is not None:
            handler.register_comm_hook(wrapped)
        return wrapped

    @contextmanager
    def no_sync(self, model: torch.nn.Module) -> Iterator[None]:
        pipeline = peel(model, parallel=False)[0]
        pipeline.is_synchronised = False
        try:
            yield
        finally:
            pipeline.is_synchronised = True

    def clip_grad_norm_(
        self, parameters: Iterable[torch.Tensor], max_norm: float, norm_type: float = 2
    ) -> torch.Tensor:
        held = list(parameters)
        counted = norms.gradients_by_mesh(each for each in held if not getattr(each, "is_borrowed", False))
        total = combined(self.axes, norm_type)(norms.total_norm(counted.values(), norm_type))
        factor = torch.clamp(max_norm / (total + 1e-6), max=1.0)
        multiply_([each.grad for each in held if each.grad is not None], factor)
        return total

    def clip_grad_value_(self, parameters: Iterable[torch.Tensor], clip_value: float) -> None:
        norms.clip_grad_value_(parameters, clip_value)

    def state_dict(self, model: torch.nn.Module, *, unwrap: bool = True) -> dict[str, Any]:
        """Return the full state of `model` in host memory on rank 0, an empty dictionary on the others."""
        return self._gathered(_bare(model))

    def weights(self, model: torch.nn.Module) -> dict[str, Any]:
        """Return the state of `model`, in which the parameters of other ranks have shapes alone."""
        return _bare(model).state_dict()

    def load_state_dict(self, model: torch.nn.Module, state: Mapping[str, Any], **kwargs: Any) -> Any:
        """Load a whole state that every rank has; each takes its own part of it."""
        bare, strict = _bare(model), kwargs.pop("strict", True)
        absent = _absent(bare)
        target = bare.state_dict()
        own = {name: _part_of(value, target.get(name)) for name, value in state.items() if name not in absent}
        found = bare.load_state_dict(own, strict=False, **kwargs)
        missing = [name for name in found.missing_keys if name not in state]
        if strict and (missing or found.unexpected_keys):
            raise RuntimeError(_other_names(bare, missing, found.unexpected_keys))
        return found

    def _gathered(self, bare: torch.nn.Module) -> dict[str, Any]:
        """Return on the main process what the ranks have of the state of a bare model together."""
        state, absent = bare.state_dict(), _absent(bare)
        own = {name: _whole(each) for name, each in state.items() if name not in absent}
        found = self._on_main(own)
        return {name: found[name] for name in state} if found else {}

    def _on_main(self, own: dict[Any, Any]) -> dict[Any, Any]:
        """Return on the main process the dictionaries of all ranks in one, an empty one elsewhere."""
        is_main = self.runtime.topology.is_main
        parts: list[Any] = [None] * self.runtime.topology.world_size
        sent = own if self._reads_first() else {}
        dist.gather_object(sent, parts if is_main else None, dst=0)
        return {key: value for part in reversed(parts) for key, value in part.items()} if is_main else {}

    def _reads_first(self) -> bool:
        """Whether this rank is the first of those that have the same stages; the others have the same."""
        views = [self.layout.view(name) for name in ("data", "tp", "cp")]
        return all(view is None or view.get_local_rank() == 0 for view in views)

    def model_records(self, models: Sequence[Any], weights: Sequence[Any], *, safe: bool) -> list[Record]:
        return [
            StagedModelRecord(
                index,
                state,
                partial(self.load_state_dict, models[index]) if index < len(models) else None,
                partial(self._gathered, _bare(models[index])) if index < len(models) else partial(dict, state),
                safe,
            )
            for index, state in enumerate(weights)
        ]

    def optimizer_records(self, optimizers: Sequence[Any], models: Sequence[Any]) -> list[Record]:
        known = names_by_identity(models)
        return [
            StagedOptimizerRecord(index, each, names_of_groups(each, known), self._on_main)
            for index, each in enumerate(optimizers)
        ]


class StagedModelRecord(WholeModelRecord):
    """A model in stages that the main process writes as a whole, in the file of a model that isn't.

    Args:
        safe: write safetensors.
    """

    def __init__(self, index: int, weights: Mapping[str, Any], load: Any, gather: Any, safe: bool) -> None:
        super().__init__(index, weights, load, gather)
        self.name, self.safe = model_names(index)[0 if safe else 1], safe


class StagedOptimizerRecord(WholeOptimizerRecord):
    """An optimizer of which every rank has the states of its own parameters.

    Args:
        on_main: puts the dictionaries of all ranks together on the main process.
    """

    def __init__(self, index: int, optimizer: Any, names: list[list[str | None]], on_main: Any) -> None:
        super().__init__(index, optimizer, names, keep=True)
        self.on_main = on_main

    def _let_go(self) -> None:
        for parameter in parameters_of(self.owner):
            if is_elsewhere(parameter):  # its rank has the state that counts
                self.owner.state.pop(parameter, None)

    def restore(self, source: Source) -> None:
        super().restore(source)
        self._let_go()

    def state(self) -> Any:
        self._let_go()
        own = super().state()
        return {**own, "state": self.on_main(own["state"])}


def _bare(model: torch.nn.Module) -> torch.nn.Module:
    found = peel(model, parallel=False)[0]
    return found.module if isinstance(found, Pipelined) else found


def _absent(bare: torch.nn.Module) -> set[str]:
    """Return the names of the parameters and buffers that other ranks have."""
    named = (*bare.named_parameters(remove_duplicate=False), *bare.named_buffers(remove_duplicate=False))
    return {canonical_name(name) for name, each in named if is_elsewhere(each)}


def _whole(value: Any) -> Any:
    """Return what the ranks that have the same stages hold of a value together, in host memory."""
    value = value.full_tensor() if isinstance(value, DTensor) else value
    return value.detach().cpu() if isinstance(value, torch.Tensor) else value


def _part_of(value: Any, target: Any) -> Any:
    """Return the part of a whole value that goes into a DTensor; for any other target the value."""
    if not isinstance(target, DTensor) or isinstance(value, DTensor):
        return value
    here = value.to(target.to_local().device)
    return distribute_tensor(here, target.device_mesh, target.placements, src_data_rank=None)


def _other_names(model: torch.nn.Module, missing: Sequence[str], unknown: Sequence[str]) -> str:
    return message(
        given=f"a state for a {type(model).__name__} without {shortened(missing) or 'nothing'} "
        f"and with {shortened(unknown) or 'nothing'}",
        why="the model has other parameters",
        allowed="the state of the same model, or of any other with strict=False",
        do="build the model as it was when its state was saved",
    )
