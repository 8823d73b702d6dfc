"""From a bare model to a sharded one: unit by unit, with the weights of the main process where ranks differ."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch.distributed.fsdp import FSDPModule, FullyShardedDataParallel, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor

from accelerate.base.messages import message, warn_once
from accelerate.strategies.fsdp2.begin import Beginning, begin, materialise
from accelerate.strategies.fsdp2.dtypes import apart, quantized_modules, refuse_dtypes, widen
from accelerate.strategies.fsdp2.public import fsdp2_prepare_auto_wrap_policy
from accelerate.strategies.fsdp2.recompute import recompute
from accelerate.strategies.fsdp2.units import Unit, Units, ignored_modules_of, parameters_of, units_of

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

    from accelerate.config.fsdp import FullyShardedDataParallelPlugin
    from accelerate.state.runtime import Runtime


def shard_model(
    model: torch.nn.Module, plugin: FullyShardedDataParallelPlugin, mesh: DeviceMesh, runtime: Runtime
) -> torch.nn.Module:
    """Shard `model` in place over `mesh` and return it.

    Args:
        model: a bare model; on ranks other than 0 its parameters may be on the meta device.
        plugin: how to shard; read now.
        mesh: one axis to shard over, or two: replicas, and shards.
        runtime: who this process is and where it computes.

    Raises:
        ValueError: the model differs between ranks, or has no class that was named.
    """
    left_alone, ignored, beginning = look_at(model, plugin, runtime)
    for module in left_alone:
        beginning.place(module.modules())
    return shard_from(model, plugin, mesh, beginning, ignored)


def shard_from(
    model: torch.nn.Module,
    plugin: FullyShardedDataParallelPlugin,
    mesh: DeviceMesh,
    beginning: Beginning,
    ignored: set[torch.nn.Parameter],
) -> torch.nn.Module:
    """Shard `model` in place, unit by unit, with the values that `beginning` says, and return it."""
    units = units_of(model, policy_for(plugin, model), ignored)
    _recompute(model, units, plugin)
    job = _Job(plugin, mesh, ignored, beginning)
    for unit in units.blocks:
        job.shard(unit, plugin.reshard_after_forward)
    for unit in units.ends:
        job.shard(unit, plugin.reshard_after_forward and unit is not units.ends[-1])
    job.shard((model,), None if plugin.reshard_after_forward is True else plugin.reshard_after_forward)
    return model


def look_at(
    model: torch.nn.Module, plugin: FullyShardedDataParallelPlugin, runtime: Runtime
) -> tuple[list[torch.nn.Module], set[torch.nn.Parameter], Beginning]:
    """Settle what becomes of a bare model before it is sharded, in either version.

    Returns:
        the modules that are left alone, their parameters, and where the values of all others come from.
    """
    plugin.set_auto_wrap_policy(model)
    left_alone = ignored_modules_of(model, plugin.ignored_modules)
    left_alone += [module for module in quantized_modules(model) if module not in left_alone]
    _warn_of_ignored(parameters_of(left_alone))
    if plugin.param_init_fn is not None:
        materialise(model, plugin.param_init_fn)
    only_main = bool(plugin.cpu_ram_efficient_loading)
    beginning = begin(model, runtime.collectives, runtime.device.storage, only_main=only_main)
    return left_alone, parameters_of(left_alone), beginning


def policy_for(plugin: FullyShardedDataParallelPlugin, model: torch.nn.Module) -> Any:
    """Return which modules become units: as the plugin says, or a library that has replaced our function for it."""
    face: Any = sys.modules.get("accelerate.utils.fsdp_utils")
    choose = getattr(face, "fsdp2_prepare_auto_wrap_policy", fsdp2_prepare_auto_wrap_policy)
    if choose is fsdp2_prepare_auto_wrap_policy:
        return plugin.auto_wrap_policy
    chosen = choose(plugin, model)
    return None if chosen is None else lambda module, recurse, nonwrapped_numel: recurse or bool(chosen(module))


@dataclass(frozen=True)
class _Job:
    """Shards the units of one model."""

    plugin: FullyShardedDataParallelPlugin
    mesh: DeviceMesh
    ignored: set[torch.nn.Parameter]
    beginning: Beginning

    def shard(self, unit: Unit, reshard: bool | int | None) -> None:
        """Give a unit the values to begin with, and shard it; what is sharded inside of it stays as it is."""
        own = [module for module in own_modules(unit) if not self._is_ignored(module)]
        self.beginning.place(own)
        policy = self.plugin.mixed_precision_policy
        if policy is not None and policy.param_dtype is not None:
            widen(own)
        settings: dict[str, Any] = {"mesh": self.mesh, "offload_policy": self.plugin.cpu_offload}
        if policy is not None:
            settings["mp_policy"] = policy
        if self.ignored:
            settings["ignored_params"] = self.ignored
        for module in apart(unit, own, self.ignored, frozen=False):
            fully_shard(module, reshard_after_forward=reshard, **settings)
            own.remove(module)
        refuse_dtypes(unit, own, self.ignored, frozen=False)
        fully_shard(list(unit) if len(unit) > 1 else unit[0], reshard_after_forward=reshard, **settings)

    def _is_ignored(self, module: torch.nn.Module) -> bool:
        own = [each for each in module._parameters.values() if each is not None]
        return bool(own) and all(each in self.ignored for each in own)


def own_modules(unit: Unit) -> Iterator[torch.nn.Module]:
    """Yield the modules of a unit that are not part of a unit inside of it."""
    for module in unit:
        yield module
        for child in module.children():
            if not isinstance(child, FSDPModule):
                yield from own_modules((child,))


def refuse_wrapped(model: torch.nn.Module) -> None:
    """Refuse a model that is distributed already.

    Raises:
        ValueError: it is.
    """
    wrappers = (FSDPModule, FullyShardedDataParallel, torch.nn.parallel.DistributedDataParallel)
    found = next((module for module in model.modules() if isinstance(module, wrappers)), None)
    if found is not None:
        raise ValueError(
            message(
                given=f"a {type(model).__name__} that has a {type(found).__name__} in it",
                why="its parameters are distributed already",
                allowed="a bare model",
                do="pass the model to `prepare` without sharding or wrapping it, and only once",
            )
        )


def _recompute(model: torch.nn.Module, units: Units, plugin: FullyShardedDataParallelPlugin) -> None:
    if not plugin.activation_checkpointing:
        return
    if not units.blocks:
        warn_once(
            f"activation_checkpointing recomputes units, and {type(model).__name__} has none: it has no effect. "
            "Choose an auto_wrap_policy."
        )
    modules = (module for unit in units.blocks for module in unit)
    recompute(modules, offload=plugin.activation_checkpointing_offload)


def _warn_of_ignored(ignored: Iterable[torch.nn.Parameter]) -> None:
    if any(parameter.requires_grad for parameter in ignored):
        warn_once(
            "ignored_modules has parameters that are trained: their gradients are not exchanged between processes, so "
            "each process updates its own copy."
        )


def shard_states(optimizers: Iterable[torch.optim.Optimizer]) -> None:
    """Shard what optimizers keep for parameters that have become DTensors, such as states loaded before."""
    for optimizer in optimizers:
        for parameter, state in optimizer.state.items():
            if isinstance(parameter, DTensor) and isinstance(state, dict):
                for key, value in state.items():
                    if _is_whole(value, parameter):
                        whole = value.to(parameter.to_local().device)
                        state[key] = distribute_tensor(whole, parameter.device_mesh, parameter.placements)


def _is_whole(value: Any, parameter: DTensor) -> bool:
    return isinstance(value, torch.Tensor) and not isinstance(value, DTensor) and value.shape == parameter.shape


def units_in(model: torch.nn.Module) -> Iterator[FSDPModule]:
    """Yield the sharded modules of `model`, itself among them if it is one."""
    return (module for module in model.modules() if isinstance(module, FSDPModule))
