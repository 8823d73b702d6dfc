"""From a bare model to one wrapped in `FullyShardedDataParallel`, unit by unit.

Units are found, and get the weights to begin with, as in the second generation, rather than by torch's own automatic
wrapping: so that models on the meta device and ranks with other weights work on every kind of device, and tied
parameters are wrapped with all their users.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch.distributed.fsdp import CPUOffload, FullyShardedDataParallel

from accelerate.base.messages import message, warn_once
from accelerate.strategies.fsdp2.dtypes import apart, refuse_dtypes, widen
from accelerate.strategies.fsdp2.recompute import recompute
from accelerate.strategies.fsdp2.sharding import look_at, refuse_wrapped
from accelerate.strategies.fsdp2.units import parameters_of, units_of

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

    from accelerate.config.fsdp import FullyShardedDataParallelPlugin
    from accelerate.state.runtime import Runtime

HYBRID = ("HYBRID_SHARD", "_HYBRID_SHARD_ZERO2")


def wrap_model(
    model: torch.nn.Module, plugin: FullyShardedDataParallelPlugin, mesh: DeviceMesh, runtime: Runtime
) -> torch.nn.Module:
    """Return `model`, whose units are wrapped in place, in a `FullyShardedDataParallel` of its own.

    Args:
        model: a bare model; on ranks other than 0 its parameters may be on the meta device.
        plugin: how to shard; read now.
        mesh: one axis to shard over, or two: replicas, and shards.
        runtime: who this process is and where it computes.

    Raises:
        ValueError: the model differs between ranks, has no class that was named, or mixes frozen and trained
            parameters in a unit.
    """
    refuse_wrapped(model)
    left_alone, ignored, beginning = look_at(model, plugin, runtime)
    blocks = [module for unit in units_of(model, plugin.auto_wrap_policy, ignored).blocks for module in unit]
    if plugin.activation_checkpointing:
        _recompute(model, blocks)
    settings = settings_of(plugin, mesh, runtime.device.torch_device) | {"ignored_modules": left_alone or None}
    wrap_in_place(model, blocks, lambda block: _wrapped(block, beginning, plugin, settings))
    return _wrapped(model, beginning, plugin, settings)


def _wrapped(module: torch.nn.Module, beginning: Any, plugin: Any, settings: dict[str, Any]) -> torch.nn.Module:
    """Return one unit, with the weights to begin with, in its wrapper."""
    own = list(_own_modules(module))
    beginning.place(own)
    policy = plugin.mixed_precision_policy
    if policy is not None and policy.param_dtype is not None:
        widen(own)
    ignored = parameters_of(settings["ignored_modules"] or ())
    others = apart((module,), own, ignored, frozen=True)
    if others:
        wrap_in_place(module, others, lambda each: FullyShardedDataParallel(each, **settings))
        own = list(_own_modules(module))
    refuse_dtypes((module,), own, ignored, frozen=True)
    if not plugin.use_orig_params:
        _refuse_mixed(module, {each for one in own for each in one.parameters(recurse=False) if each not in ignored})
    return FullyShardedDataParallel(module, **settings)


def wrap_in_place(
    model: torch.nn.Module, modules: Iterable[torch.nn.Module], wrap: Callable[[torch.nn.Module], torch.nn.Module]
) -> None:
    """Put what `wrap` makes of `modules`, which are somewhere in `model`, in their places."""
    places = {child: (parent, name) for parent in model.modules() for name, child in parent.named_children()}
    for module in modules:
        parent, name = places[module]
        setattr(parent, name, wrap(module))


def _own_modules(module: torch.nn.Module) -> Iterator[torch.nn.Module]:
    """Yield `module` and the modules in it that are not part of a unit inside."""
    yield module
    for child in module.children():
        if not isinstance(child, FullyShardedDataParallel):
            yield from _own_modules(child)


def settings_of(plugin: FullyShardedDataParallelPlugin, mesh: DeviceMesh, device: torch.device) -> dict[str, Any]:
    """Return the arguments of every wrapper."""
    offload = plugin.cpu_offload
    if offload.offload_params and device.type == "cpu":
        warn_once("cpu_offload has nothing to do on the CPU: parameters are in host memory already.")
        offload = CPUOffload(offload_params=False)
    return {
        "device_mesh": mesh,
        "sharding_strategy": plugin.sharding_strategy,
        "cpu_offload": offload,
        "backward_prefetch": plugin.backward_prefetch,
        "mixed_precision": plugin.mixed_precision_policy,
        "device_id": torch.device("cpu") if device.type == "cpu" else device,  # torch takes no "cpu:0" here
        "forward_prefetch": plugin.forward_prefetch,
        "limit_all_gathers": plugin.limit_all_gathers,
        "use_orig_params": plugin.use_orig_params,
    }


def _recompute(model: torch.nn.Module, blocks: list[torch.nn.Module]) -> None:
    if not blocks:
        warn_once(
            f"activation_checkpointing recomputes units, and {type(model).__name__} has none: it has no effect. "
            "Choose an auto_wrap_policy."
        )
    recompute(blocks)


def _refuse_mixed(unit: torch.nn.Module, parameters: Iterable[torch.nn.Parameter]) -> None:
    """Refuse a unit whose one flat parameter would be frozen in parts."""
    if len({parameter.requires_grad for parameter in parameters}) > 1:
        raise ValueError(
            message(
                given=f"a {type(unit).__name__} with frozen and trained parameters in one unit of FSDP",
                why="with use_orig_params=False the parameters of a unit are one flat tensor, trained or not",
                allowed="units that are frozen or trained as a whole; any with use_orig_params=True or fsdp_version=2",
                do="pass FullyShardedDataParallelPlugin(use_orig_params=True)",
            )
        )
