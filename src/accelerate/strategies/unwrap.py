"""From a prepared model back to the bare one, whatever order its wrappers are in.

Nothing that is still in use is changed: where something inside a model has to be taken off (a compiled block, the
forward of mixed precision), the modules on the way to it are copied, and all parameters and untouched modules are
shared.
"""

from __future__ import annotations

import functools
import sys
import types
from typing import Any

import torch

from accelerate.precision.autocast import AutocastForward, has_autocast, strip_autocast
from accelerate.strategies.compile import compiles_in_place, is_compiled_module

#: Classes that hold the model as `.module`. One whose module is not loaded has no instances.
WRAPPERS = (
    ("torch.nn.parallel", "DistributedDataParallel"),
    ("torch.nn.parallel", "DataParallel"),
    ("torch.distributed.fsdp", "FullyShardedDataParallel"),
    ("deepspeed", "DeepSpeedEngine"),
    ("accelerate.strategies.axes.pipeline", "Pipelined"),
)


def extract_model_from_parallel(
    model: torch.nn.Module,
    keep_fp32_wrapper: bool = True,
    keep_torch_compile: bool = True,
    recursive: bool = False,
) -> torch.nn.Module:
    """Return the model inside what distributed training, `torch.compile` and mixed precision put around it.

    Args:
        model: a prepared model, or any other.
        keep_fp32_wrapper: leave the forward of mixed precision in place.
        keep_torch_compile: return a compiled model if it was compiled, and leave compiled parts as they are.
        recursive: also take off wrappers inside the model, such as those of FSDP.
    """
    bare, compiled = peel(model, parallel=True)
    if not isinstance(bare, torch.nn.Module):
        return bare
    bare = _without_inner_wrappers(bare, parallel=recursive, compiled=not keep_torch_compile)
    if not keep_fp32_wrapper and has_autocast(bare):
        bare = share(bare)
        strip_autocast(bare)
    return compiled_again(bare, compiled if keep_torch_compile else None)


def peel(model: Any, *, parallel: bool) -> tuple[Any, Any]:
    """Return what is inside the wrappers around `model`, and the innermost wrapper of `torch.compile` among them.

    Args:
        model: a model, wrapped or not.
        parallel: take off the wrappers of distributed training too.
    """
    compiled = None
    while True:
        if is_compiled_module(model):
            compiled, model = model, model._orig_mod
        elif parallel and _is_parallel(model):
            model = model.module
        else:
            return model, compiled


def _is_parallel(model: Any) -> bool:
    loaded = ((sys.modules.get(module), name) for module, name in WRAPPERS)
    return isinstance(model, tuple(getattr(module, name) for module, name in loaded if hasattr(module, name)))


def compiled_again(model: torch.nn.Module, compiled: Any) -> torch.nn.Module:
    """Return `compiled` if it compiles `model`, a new wrapper that compiles `model` the same way if not."""
    if compiled is None:
        return model
    return compiled if compiled._orig_mod is model else type(compiled)(model, compiled.dynamo_ctx)


def _without_inner_wrappers(
    model: torch.nn.Module, *, parallel: bool, compiled: bool, done: dict[int, torch.nn.Module] | None = None
) -> torch.nn.Module:
    """Return `model` without wrappers on the modules in it; it is a copy if there were any.

    Args:
        model: a model without wrappers around it.
        parallel: take off wrappers of distributed training.
        compiled: take off compilation.
        done: what modules have become, by identity.
    """
    if not (parallel or compiled):
        return model
    done = {} if done is None else done
    children: dict[str, Any] = {}
    for name, child in model._modules.items():
        if child is not None and id(child) not in done:
            bare, wrapper = peel(child, parallel=parallel)
            bare = _without_inner_wrappers(bare, parallel=parallel, compiled=compiled, done=done)
            done[id(child)] = compiled_again(bare, None if compiled else wrapper)
        children[name] = None if child is None else done[id(child)]
    same = all(children[name] is child for name, child in model._modules.items())
    return model if same and not (compiled and compiles_in_place(model)) else share(model, children)


def share(module: torch.nn.Module, children: dict[str, Any] | None = None) -> torch.nn.Module:
    """Return another module with the same class, parameters, buffers and attributes, not compiled.

    Args:
        module: a module.
        children: its children; those of `module` by default.
    """
    new: torch.nn.Module = object.__new__(type(module))  # a sharded module's own `__new__` would run `__init__`
    new.__dict__.update({name: _bound_to(new, value, module) for name, value in module.__dict__.items()})
    new.__dict__["_modules"] = dict(module._modules if children is None else children)
    new.__dict__.pop("_compiled_call_impl", None)
    return new


def _bound_to(new: torch.nn.Module, value: Any, old: torch.nn.Module) -> Any:
    """Return `value` with its binding to `old`, if it is a method or a partial call of it, changed to `new`."""
    if value is old:
        return new
    if isinstance(value, types.MethodType) and value.__self__ is old:
        return types.MethodType(value.__func__, new)
    if isinstance(value, AutocastForward) and value.module is old:
        return value.bound_to(new, _bound_to(new, value.original, old))
    if isinstance(value, functools.partial):
        bound = functools.partial(value.func, *(_bound_to(new, each, old) for each in value.args), **value.keywords)
        bound.__dict__.update({name: _bound_to(new, each, old) for name, each in value.__dict__.items()})
        return bound
    return value
