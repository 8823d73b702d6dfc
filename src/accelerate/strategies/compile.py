"""`torch.compile` on prepared models: the whole model, or each repeated block by itself.

Regional compilation compiles the blocks of every `ModuleList` of equal modules, which share one compiled graph,
and what lies beside them: the wait at the first step is that of one block. Blocks are compiled in place
(`Module.compile`), so the names of parameters, in `state_dict` too, stay as they are.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, cast

import torch

from accelerate.config.enums import DynamoBackend

if TYPE_CHECKING:
    from accelerate.config.dynamo import TorchDynamoPlugin


def compile_model(model: torch.nn.Module, plugin: TorchDynamoPlugin) -> torch.nn.Module:
    """Return `model` compiled as `plugin` says; a model that is compiled already comes back as it is."""
    if plugin.backend == DynamoBackend.NO or is_compiled_module(model) or compiles_in_place(model):
        return model
    if not plugin.use_regional_compilation:
        return cast("torch.nn.Module", torch.compile(model, **plugin.to_kwargs()))
    return model if has_compiled_regions(model) else compile_regions(model, **plugin.to_kwargs())


def compile_regions(module: torch.nn.Module, **compile_kwargs: Any) -> torch.nn.Module:
    """Compile the repeated blocks of `module` and what lies beside them, in place; return `module`.

    Args:
        module: a model; without repeated blocks it is compiled as a whole.
        compile_kwargs: arguments of `torch.compile`.
    """
    for region in regions(module):
        _compile_in_place(region, compile_kwargs)
    return module


def regions(module: torch.nn.Module) -> Iterator[torch.nn.Module]:
    """Yield the parts of `module` that are compiled by themselves; beside blocks not those with nothing to fuse."""
    if is_repeated_blocks(module):
        yield from module.children()
    elif has_repeated_blocks(module):
        for child in module.children():
            if not (_is_of_torch(child) and next(child.children(), None) is None):
                yield from regions(child)
    else:
        yield module


def _compile_in_place(module: torch.nn.Module, compile_kwargs: dict[str, Any]) -> None:
    """Compile the calls of `module` and leave its name, class and attributes alone."""
    if not _is_of_torch(module):
        module.compile(**compile_kwargs)
        return
    call = module._call_impl

    # torch.compile skips a frame that is torch's own, but looks into it from this one.
    def region(*args: Any, **kwargs: Any) -> Any:
        return call(*args, **kwargs)

    module._compiled_call_impl = torch.compile(region, **compile_kwargs)


def _is_of_torch(module: torch.nn.Module) -> bool:
    return type(module).__module__.startswith("torch.")


def is_repeated_blocks(module: torch.nn.Module) -> bool:
    """Whether `module` is a `ModuleList` of modules of one class."""
    return isinstance(module, torch.nn.ModuleList) and len({type(block) for block in module}) == 1


def has_repeated_blocks(module: torch.nn.Module) -> bool:
    """Whether `module` or something in it is a `ModuleList` of modules of one class."""
    return any(is_repeated_blocks(each) for each in module.modules())


def is_compiled_module(module: torch.nn.Module) -> bool:
    """Whether `module` is what `torch.compile(module)` returns."""
    dynamo = sys.modules.get("torch._dynamo")  # while it is not loaded nothing is compiled; loading it takes seconds
    return dynamo is not None and isinstance(module, dynamo.OptimizedModule)


def compiles_in_place(module: torch.nn.Module) -> bool:
    """Whether `module.compile()` was called."""
    return getattr(module, "_compiled_call_impl", None) is not None


def has_compiled_regions(module: torch.nn.Module) -> bool:
    """Whether something inside `module`, which is not compiled as a whole, is compiled."""
    if is_compiled_module(module):
        return False
    inner = (each for each in module.modules() if each is not module)
    return any(is_compiled_module(each) or compiles_in_place(each) for each in inner)


def allow_tf32(device: torch.device, plugin: TorchDynamoPlugin) -> None:
    """Let fp32 matrix products of compiled models on NVIDIA GPUs use TF32, for the whole process."""
    if device.type == "cuda" and plugin.backend != DynamoBackend.NO:
        torch.set_float32_matmul_precision("high")
