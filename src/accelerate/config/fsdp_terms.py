"""What the settings of FSDP mean in torch's terms, and which of them exist in which version.

Separate from the plugin so that declaring settings imports no torch; here it is imported when a plugin is built.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from accelerate.base.messages import did_you_mean, message, warn_once

if TYPE_CHECKING:
    import torch

    from accelerate.config.fsdp import FullyShardedDataParallelPlugin as Plugin

#: Fields that only the first version has.
OF_VERSION_1 = ("sharding_strategy", "backward_prefetch", "use_orig_params", "sync_module_states")
PRECISIONS = ("fp8", "fp16", "bf16", "fp32")


def check(plugin: Plugin) -> None:
    """Refuse settings that contradict each other or the version.

    Raises:
        ValueError: they do.
    """
    reshard, version = plugin.reshard_after_forward, plugin.fsdp_version
    if version == 1 and isinstance(reshard, bool):
        raise _refused(
            f"reshard_after_forward={reshard} with fsdp_version=1",
            "version 1 has strategies rather than a switch",
            "the name of a strategy: FULL_SHARD, SHARD_GRAD_OP, NO_SHARD, HYBRID_SHARD, HYBRID_SHARD_ZERO2",
            f"write {'FULL_SHARD' if reshard else 'SHARD_GRAD_OP'}, or use fsdp_version=2",
        )
    if version == 1 and None not in (reshard, plugin.sharding_strategy) and reshard != plugin.sharding_strategy:
        raise _refused(
            f"reshard_after_forward={reshard!r} and sharding_strategy={plugin.sharding_strategy!r}",
            "in version 1 the two are one setting",
            "one of them",
            "leave one out",
        )
    if version == 2:
        _check_version_2(plugin)
    if plugin.activation_checkpointing_offload and not (plugin.activation_checkpointing and version == 2):
        raise _refused(
            f"activation_checkpointing_offload with fsdp_version={version} and "
            f"activation_checkpointing={plugin.activation_checkpointing}",
            "it moves what activation checkpointing keeps, as version 2 does it",
            "activation_checkpointing_offload=True with activation_checkpointing=True and fsdp_version=2",
            "set these too, or leave it out",
        )


def _check_version_2(plugin: Plugin) -> None:
    """Refuse what version 2 doesn't have."""
    if isinstance(plugin.reshard_after_forward, str):
        raise _refused(
            f"reshard_after_forward={plugin.reshard_after_forward!r} with fsdp_version=2",
            "version 2 has a switch rather than strategies",
            "true or false",
            "write true for FULL_SHARD and HYBRID_SHARD, false for SHARD_GRAD_OP and HYBRID_SHARD_ZERO2",
        )
    if plugin.forward_prefetch:
        raise _refused(
            "forward_prefetch=True with fsdp_version=2",
            "version 2 gathers the next unit while one computes, without being told",
            "forward_prefetch with fsdp_version=1",
            "leave it out",
        )
    if _name(plugin.state_dict_type) == "LOCAL_STATE_DICT":
        raise _refused(
            "state_dict_type=LOCAL_STATE_DICT with fsdp_version=2",
            "version 2 has no flat shards that a file of each rank could hold",
            "SHARDED_STATE_DICT or FULL_STATE_DICT",
            "write SHARDED_STATE_DICT, which is as fast and can be loaded by another number of processes",
        )


def settle(plugin: Plugin) -> None:
    """Fill what is left open, and turn names into torch's members."""
    if plugin.fsdp_version == 2:
        _settle_version_2(plugin)
    else:
        _settle_version_1(plugin)
    plugin.auto_wrap_policy = _policy_function(plugin.auto_wrap_policy)


def _settle_version_1(plugin: Plugin) -> None:
    from torch.distributed.fsdp import BackwardPrefetch, ShardingStrategy

    chosen = plugin.sharding_strategy or plugin.reshard_after_forward or "FULL_SHARD"
    name = _name(chosen)
    plugin.sharding_strategy = ShardingStrategy["_HYBRID_SHARD_ZERO2" if name == "HYBRID_SHARD_ZERO2" else name]
    if plugin.reshard_after_forward is not None:
        plugin.reshard_after_forward = plugin.sharding_strategy
    prefetch = _name(plugin.backward_prefetch)
    plugin.backward_prefetch = None if prefetch in (None, "NO_PREFETCH") else BackwardPrefetch[prefetch]
    for name in ("use_orig_params", "sync_module_states", "forward_prefetch"):
        setattr(plugin, name, bool(getattr(plugin, name)))
    if plugin.cpu_ram_efficient_loading and not plugin.sync_module_states:
        warn_once("cpu_ram_efficient_loading needs sync_module_states: without it, only rank 0 would have weights.")
        plugin.sync_module_states = True


def _settle_version_2(plugin: Plugin) -> None:
    given = [name for name in OF_VERSION_1 if getattr(plugin, name) is not None]
    if not plugin.limit_all_gathers:
        given.append("limit_all_gathers")
    if given:
        warn_once(f"FSDP version 2 has no {', '.join(given)}; what was given has no effect.")
    for name in (*OF_VERSION_1, "forward_prefetch"):
        setattr(plugin, name, None)
    if plugin.reshard_after_forward is None:
        plugin.reshard_after_forward = True


def _policy_function(policy: Any) -> Any:
    """Return torch's policy of a name; None for NO_WRAP; a function as it is."""
    from torch.distributed.fsdp.wrap import size_based_auto_wrap_policy, transformer_auto_wrap_policy

    by_name = {
        "TRANSFORMER_BASED_WRAP": transformer_auto_wrap_policy,
        "SIZE_BASED_WRAP": size_based_auto_wrap_policy,
        "NO_WRAP": None,
    }
    return by_name[policy] if isinstance(policy, str) else policy


def set_auto_wrap_policy(plugin: Plugin, model: torch.nn.Module) -> None:
    """Give a policy that came by name what it needs to know of `model`."""
    from torch.distributed.fsdp.wrap import size_based_auto_wrap_policy, transformer_auto_wrap_policy

    function = getattr(plugin.auto_wrap_policy, "func", plugin.auto_wrap_policy)
    if plugin.transformer_cls_names_to_wrap and function is not transformer_auto_wrap_policy:
        warn_once("transformer_cls_names_to_wrap has no effect without auto_wrap_policy=TRANSFORMER_BASED_WRAP.")
    if plugin.min_num_params and function is not size_based_auto_wrap_policy:
        warn_once("min_num_params has no effect without auto_wrap_policy=SIZE_BASED_WRAP.")
    if plugin.auto_wrap_policy is transformer_auto_wrap_policy:
        classes = classes_to_wrap(plugin, model)
        plugin.auto_wrap_policy = functools.partial(transformer_auto_wrap_policy, transformer_layer_cls=classes)
    elif plugin.auto_wrap_policy is size_based_auto_wrap_policy:
        size = plugin.min_num_params or 0
        if size == 0:
            warn_once("SIZE_BASED_WRAP with min_num_params=0 makes one unit of the whole model.")
        policy = functools.partial(size_based_auto_wrap_policy, min_num_params=size) if size else None
        plugin.auto_wrap_policy = policy


def classes_to_wrap(plugin: Plugin, model: torch.nn.Module) -> set[type[torch.nn.Module]]:
    """Return the classes of `model` that become units.

    Raises:
        ValueError: a class was named that the model doesn't have.
    """
    found = {type(module).__name__: type(module) for module in model.modules()}
    names = plugin.transformer_cls_names_to_wrap
    if names is None:
        names = [name for name in getattr(model, "_no_split_modules", None) or () if name in found]
        if not names:
            warn_once(
                f"{type(model).__name__} doesn't say what may not be split (_no_split_modules), and "
                "transformer_cls_names_to_wrap is not given: the whole model becomes one unit, which saves little."
            )
    for name in names:
        if name not in found:
            raise ValueError(
                message(
                    given=f"transformer_cls_names_to_wrap with {name!r}",
                    why=f"{type(model).__name__} has no module of this class",
                    allowed=", ".join(sorted(found)),
                    do=did_you_mean(name, found),
                )
            )
    return {found[name] for name in names}


def set_state_dict_type(plugin: Plugin, chosen: Any = None) -> None:
    """Set how checkpoints are laid out, with torch's settings for it."""
    from torch.distributed.fsdp import StateDictType

    default = "FULL_STATE_DICT" if plugin.fsdp_version == 1 else "SHARDED_STATE_DICT"
    name = _name(chosen or plugin.state_dict_type or default)
    if name not in StateDictType.__members__:
        raise _refused(
            f"state_dict_type={chosen!r}",
            "there is no such layout",
            ", ".join(StateDictType.__members__),
            did_you_mean(str(chosen), StateDictType.__members__),
        )
    plugin.state_dict_type = StateDictType[name]
    usual = _state_dict_configs()
    for setting, own in zip(("state_dict_config", "optim_state_dict_config"), usual[name], strict=True):
        given = getattr(plugin, setting)
        if given is not None and not any(given in pair for pair in usual.values()):
            warn_once(
                f"{setting}={given} has no effect: state_dict_type says how checkpoints are laid out, and whole states "
                "are put together in host memory, on the main process."
            )
        if not isinstance(given, type(own)):
            setattr(plugin, setting, own)


def _state_dict_configs() -> dict[str, tuple[Any, Any]]:
    """Return torch's settings for each layout, of models and of optimizers."""
    from torch.distributed import fsdp

    return {
        "FULL_STATE_DICT": (
            fsdp.FullStateDictConfig(offload_to_cpu=True, rank0_only=True),
            fsdp.FullOptimStateDictConfig(offload_to_cpu=True, rank0_only=True),
        ),
        "SHARDED_STATE_DICT": (
            fsdp.ShardedStateDictConfig(offload_to_cpu=True),
            fsdp.ShardedOptimStateDictConfig(offload_to_cpu=True),
        ),
        "LOCAL_STATE_DICT": (
            fsdp.LocalStateDictConfig(offload_to_cpu=True),
            fsdp.LocalOptimStateDictConfig(offload_to_cpu=True),
        ),
    }


def set_cpu_offload(plugin: Plugin) -> None:
    """Turn True or False into the offload policy of the version; pinned memory only where there is a device."""
    from torch.distributed.fsdp import CPUOffload, CPUOffloadPolicy, OffloadPolicy

    wanted = plugin.cpu_offload
    if isinstance(wanted, bool):
        if plugin.fsdp_version == 1:
            plugin.cpu_offload = CPUOffload(offload_params=wanted)
        else:
            plugin.cpu_offload = CPUOffloadPolicy(pin_memory=can_pin()) if wanted else OffloadPolicy()
    validate_cpu_offload(plugin)


def can_pin() -> bool:
    """Whether host memory can be pinned: for copies to a device, so there has to be one."""
    import torch

    return torch.accelerator.is_available()


def validate_cpu_offload(plugin: Plugin) -> None:
    """Refuse an offload policy of the other version."""
    from torch.distributed.fsdp import CPUOffload, OffloadPolicy

    kind = CPUOffload if plugin.fsdp_version == 1 else OffloadPolicy
    if not isinstance(plugin.cpu_offload, kind):
        raise _refused(
            f"cpu_offload={plugin.cpu_offload!r} with fsdp_version={plugin.fsdp_version}",
            "it is not an offload policy of this version",
            f"True, False, or a torch.distributed.fsdp.{kind.__name__}",
            "write True to keep parameters in host memory",
        )


def policy_of(plugin: Plugin, precision: Any, buffer_autocast: bool = False) -> Any:
    """Return torch's mixed precision policy for the name of a precision or a dtype."""
    import torch
    from torch.distributed.fsdp import MixedPrecision, MixedPrecisionPolicy

    dtypes = {"fp8": torch.bfloat16, "fp16": torch.float16, "bf16": torch.bfloat16, "fp32": torch.float32}
    dtype = precision if isinstance(precision, torch.dtype) else dtypes.get(str(precision))
    if dtype not in dtypes.values():
        raise _refused(
            f"mixed_precision={precision!r}",
            "FSDP has no policy for it",
            ", ".join(PRECISIONS),
            did_you_mean(str(precision), PRECISIONS),
        )
    if plugin.fsdp_version == 1:
        buffers = torch.float32 if buffer_autocast else dtype
        return MixedPrecision(param_dtype=dtype, reduce_dtype=dtype, buffer_dtype=buffers)
    return MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=dtype, output_dtype=dtype)


def checked_policy(plugin: Plugin) -> Any:
    """Return `mixed_precision_policy` in torch's terms."""
    import torch
    from torch.distributed.fsdp import MixedPrecision, MixedPrecisionPolicy

    kind: type = MixedPrecision if plugin.fsdp_version == 1 else MixedPrecisionPolicy
    keys = ("param_dtype", "reduce_dtype", "buffer_dtype" if plugin.fsdp_version == 1 else "output_dtype")
    policy = plugin.mixed_precision_policy
    if isinstance(policy, str | torch.dtype):
        return policy_of(plugin, policy)
    if isinstance(policy, Mapping):
        dtypes = {key: _dtype(value) for key, value in policy.items()}
        if set(dtypes) <= {*keys, "cast_forward_inputs"} and None not in dtypes.values():
            return kind(**dtypes)
    elif isinstance(policy, kind):
        return policy
    raise _refused(
        f"mixed_precision_policy={policy!r} with fsdp_version={plugin.fsdp_version}",
        "it is not a policy of this version",
        f"a torch.distributed.fsdp.{kind.__name__}, one of {', '.join(PRECISIONS)}, or a dictionary with dtypes "
        f"(torch.bfloat16, torch.float16, torch.float32) for {', '.join(keys)}",
        "write one of these, or leave it out to follow mixed_precision",
    )


def _dtype(value: Any) -> Any:
    """Return a value of a policy as torch has it: a dtype, also by name, or a truth value; None if it is neither."""
    import torch

    names = {"fp16": torch.float16, "bf16": torch.bfloat16, "fp32": torch.float32}
    found = names.get(value, value) if isinstance(value, str) else value
    return found if isinstance(found, bool) or found in names.values() else None


def _name(value: Any) -> Any:
    """Return the name of a member, a name as it is in the enum, None for None."""
    name = getattr(value, "name", value)
    return name.upper() if isinstance(name, str) else name


def _refused(given: str, why: str, allowed: str, do: str) -> ValueError:
    return ValueError(message(given=given, why=why, allowed=allowed, do=do))
