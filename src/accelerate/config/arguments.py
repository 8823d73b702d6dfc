"""What the arguments of `Accelerator` mean before anything is built from them.

Here live the pairs that exclude each other, the spellings of the first releases (which still do what they say, with a
`FutureWarning`), and the refusal of what this version can't do: nothing that is passed is ever ignored.
"""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from accelerate.base.environ import parse_flag_from_env, write
from accelerate.base.messages import did_you_mean, message
from accelerate.config.data_loader import DataLoaderConfiguration
from accelerate.config.dynamo import TorchDynamoPlugin
from accelerate.config.gradient_accumulation import GradientAccumulationPlugin
from accelerate.config.parallelism import ParallelismConfig
from accelerate.config.resolve import setting

if TYPE_CHECKING:
    from accelerate.config.autocast import AutocastKwargs
    from accelerate.config.fsdp import FullyShardedDataParallelPlugin

#: The default of an argument for which None would mean something.
UNSET: Any = object()

#: The attribute of `Accelerator` that each kind of handler is stored on.
HANDLERS: dict[str, str] = {
    "AutocastKwargs": "autocast_handler",
    "DistributedDataParallelKwargs": "ddp_handler",
    "GradScalerKwargs": "scaler_handler",
    "InitProcessGroupKwargs": "init_handler",
    "ProfileKwargs": "profile_handler",
}

#: Old keyword of `Accelerator` -> what replaces it, as a person would write it.
OLD_SPELLINGS: dict[str, str] = {
    "fp16": "mixed_precision='fp16'",
    "split_batches": "dataloader_config=DataLoaderConfiguration(split_batches=...)",
    "dispatch_batches": "dataloader_config=DataLoaderConfiguration(dispatch_batches=...)",
    "even_batches": "dataloader_config=DataLoaderConfiguration(even_batches=...)",
    "use_seedable_sampler": "dataloader_config=DataLoaderConfiguration(use_seedable_sampler=...)",
}

#: Variables by which a launch asks for a capability that is not part of this version.
ASKED_BY_VARIABLE = {"ACCELERATE_USE_DEEPSPEED": "DeepSpeed", "ACCELERATE_USE_MEGATRON_LM": "Megatron-LM"}

#: Arguments of the public signature whose capability is not part of this version.
MISSING_CAPABILITIES: dict[str, str] = {
    "deepspeed_plugin": "DeepSpeed",
    "deepspeed_plugins": "DeepSpeed",
    "megatron_lm_plugin": "Megatron-LM",
    "log_with": "experiment tracking",
}


def refuse_missing_capabilities(**arguments: Any) -> None:
    """Refuse what asks for a capability that this version does not have: an argument, or a launch.

    Raises:
        NotImplementedError: one of `arguments` is not None, or a variable asks for it.
    """
    for variable, capability in ASKED_BY_VARIABLE.items():
        if parse_flag_from_env(variable):
            raise NotImplementedError(
                message(
                    given=f"{variable}=true, as a launch with {capability} has it",
                    why=f"training with {capability} is not part of this version; launching scripts of its own is",
                    allowed="a script without Accelerator under that launch, or one with it under another",
                    do="launch with --use_fsdp to divide what is trained; docs/support.md lists what is there",
                )
            )
    for name, value in arguments.items():
        if value is not None:
            raise NotImplementedError(
                message(
                    given=f"{name}={value!r}",
                    why=f"{MISSING_CAPABILITIES[name]} is not part of this version",
                    allowed="one process, or several with data parallel replicas, on any device",
                    do=f"leave {name} out; docs/support.md lists what is there",
                )
            )


def modern_spellings(old: dict[str, Any], known: Callable[[], Iterable[str]], **modern: Any) -> dict[str, Any]:
    """Return `modern` (`mixed_precision`, `dataloader_config`) with what `old` keyword arguments ask for.

    Args:
        old: keyword arguments that the signature of today doesn't have.
        known: the names in that signature, for the nearest one to be named.

    Raises:
        TypeError: an argument that no release had.
        ValueError: an old spelling that contradicts the new one.
    """
    for name, value in old.items():
        if name not in OLD_SPELLINGS:
            raise TypeError(
                message(
                    given=f"Accelerator({name}={value!r})",
                    why="it has no such argument",
                    allowed="the arguments in the signature of Accelerator",
                    do=did_you_mean(name, [*known(), *OLD_SPELLINGS]),
                )
            )
        warnings.warn(
            f"Accelerator({name}=...) is an old spelling; write {OLD_SPELLINGS[name]}.", FutureWarning, stacklevel=4
        )
        target, key, new = ("mixed_precision", None, "fp16" if value else None)
        if name != "fp16":
            target, key, new = "dataloader_config", name, value
        modern[target] = _merged(name, value, modern[target], key, new)
    return modern


def modern_autocast(old: dict[str, Any], handler: AutocastKwargs | None) -> AutocastKwargs | None:
    """Return the settings of one `autocast` context, with what old keyword arguments (`cache_enabled`) ask for.

    Raises:
        TypeError: an argument that no release had.
    """
    for name in old:
        if name != "cache_enabled":
            raise TypeError(
                message(
                    given=f"autocast({name}={old[name]!r})",
                    why="it has no such argument",
                    allowed="autocast_handler",
                    do="pass autocast_handler=AutocastKwargs(...)",
                )
            )
        text = (
            "autocast(cache_enabled=...) is an old spelling; write autocast_handler=AutocastKwargs(cache_enabled=...)."
        )
        warnings.warn(text, FutureWarning, stacklevel=3)
        from accelerate.config.autocast import AutocastKwargs

        handler = dataclasses.replace(handler or AutocastKwargs(), cache_enabled=old[name])
    return handler


def _merged(name: str, value: Any, current: Any, key: str | None, new: Any) -> Any:
    """Return the new-style value that holds both `current` and what the old spelling asks for."""
    if key is None:
        if new is None or current is None or str(current) == new:
            return current if new is None else new
    else:
        config = current or DataLoaderConfiguration()
        if getattr(config, key) in (getattr(DataLoaderConfiguration(), key), new):
            return dataclasses.replace(config, **{key: new})
    raise ValueError(
        message(
            given=f"{name}={value!r} together with {current!r}",
            why="the two ask for different things",
            allowed=f"one of them; {name} is the old spelling of {OLD_SPELLINGS[name]}",
            do=f"remove {name}",
        )
    )


def choose_dynamo(backend: Any, plugin: TorchDynamoPlugin | None) -> TorchDynamoPlugin:
    """Return what `torch.compile` is asked to do: the plugin, one of `backend`, or one of the environment.

    Raises:
        ValueError: both are given.
    """
    if plugin is not None and backend is not None:
        raise ValueError(
            message(
                given=f"dynamo_backend={backend!r} and dynamo_plugin={plugin!r}",
                why="both say how to compile",
                allowed="one of them",
                do=f"pass dynamo_plugin=TorchDynamoPlugin(backend={str(backend)!r}, ...) alone",
            )
        )
    return plugin if plugin is not None else TorchDynamoPlugin(backend=backend)


def choose_fsdp(plugin: FullyShardedDataParallelPlugin | None) -> FullyShardedDataParallelPlugin | None:
    """Return how to shard: the plugin, or one of the environment when ACCELERATE_USE_FSDP asks for it, or None.

    Passing one sets the variable, which transformers reads.

    Raises:
        TypeError: it is something else.
    """
    if plugin is None and not parse_flag_from_env("ACCELERATE_USE_FSDP"):
        return None
    from accelerate.config.fsdp import FullyShardedDataParallelPlugin

    if plugin is None:
        return FullyShardedDataParallelPlugin()
    if not isinstance(plugin, FullyShardedDataParallelPlugin):
        raise TypeError(
            message(
                given=f"fsdp_plugin={plugin!r}",
                why="it doesn't say how to shard",
                allowed="a FullyShardedDataParallelPlugin",
                do="pass fsdp_plugin=FullyShardedDataParallelPlugin(fsdp_version=2)",
            )
        )
    write("ACCELERATE_USE_FSDP", "true")
    return plugin


def choose_parallelism(config: ParallelismConfig | None, tensor: Any = None) -> ParallelismConfig | None:
    """Return how processes are laid out: `config`, one of the environment when that asks for it, or None.

    Args:
        config: what was passed.
        tensor: a `TorchTensorParallelPlugin`, which says the size of one axis.

    Raises:
        ValueError: the two contradict each other.
        TypeError: it is something else.
    """
    if config is None and parse_flag_from_env("ACCELERATE_USE_PARALLELISM_CONFIG"):
        config = ParallelismConfig()
    if config is not None and not isinstance(config, ParallelismConfig):
        raise TypeError(
            message(
                given=f"parallelism_config={config!r}",
                why="it doesn't say how processes are laid out",
                allowed="a ParallelismConfig",
                do="pass parallelism_config=ParallelismConfig(dp_shard_size=2)",
            )
        )
    size = getattr(tensor, "tp_size", 1)
    if size > 1 and config is not None and config.tp_size != size:
        raise ValueError(
            message(
                given=f"torch_tp_plugin with tp_size={size} and parallelism_config with tp_size={config.tp_size}",
                why="both say over how many processes layers are divided",
                allowed="one of them",
                do=f"pass parallelism_config=ParallelismConfig(tp_size={size}, ...) alone",
            )
        )
    return ParallelismConfig(tp_size=size) if size > 1 and config is None else config


def choose_accumulation(steps: int, plugin: GradientAccumulationPlugin | None) -> GradientAccumulationPlugin:
    """Return how gradients are accumulated: the plugin, `steps`, or ACCELERATE_GRADIENT_ACCUMULATION_STEPS.

    Raises:
        ValueError: both are given, or the number of steps is below 1.
    """
    if plugin is not None and steps != 1:
        raise ValueError(
            message(
                given=f"gradient_accumulation_steps={steps} and gradient_accumulation_plugin={plugin!r}",
                why="both say how many micro-batches make an update",
                allowed="one of them",
                do=f"pass gradient_accumulation_plugin=GradientAccumulationPlugin(num_steps={steps}, ...) alone",
            )
        )
    if plugin is None:
        plugin = GradientAccumulationPlugin(
            num_steps=setting("gradient_accumulation_steps", None if steps == 1 else steps)
        )
    if plugin.num_steps is not None and plugin.num_steps < 1:
        raise ValueError(
            message(
                given=f"{plugin.num_steps} gradient accumulation steps",
                why="an update takes at least one micro-batch",
                allowed="a whole number from 1 on",
                do="pass 1 to update after every batch",
            )
        )
    return plugin


def sort_handlers(handlers: Iterable[Any]) -> dict[str, Any]:
    """Return each handler under its attribute's name, None where none was passed.

    Raises:
        ValueError: an object that is no handler, or a second one of its class.
    """
    found: dict[str, Any] = dict.fromkeys(HANDLERS.values())
    for handler in handlers:
        attribute = HANDLERS.get(type(handler).__name__, "")
        if not attribute or found[attribute] is not None:
            raise ValueError(
                message(
                    given=f"{'a second' if attribute else 'a'} {type(handler).__name__} in kwargs_handlers",
                    why="each handler is stored once, by its class",
                    allowed=f"at most one object of each of {', '.join(HANDLERS)}",
                    do="remove it; plugins such as GradientAccumulationPlugin have an argument of their own",
                )
            )
        found[attribute] = handler
    return found
