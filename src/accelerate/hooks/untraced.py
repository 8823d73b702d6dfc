"""Hooks and `torch.compile`: what moves weights is called between compiled graphs, and never looked into.

A graph ends before a module whose hook is not `traceable`, and a new one begins after it. What the module itself
computes is compiled on its own, unless it has no modules in it and so nothing to gain.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import torch
from torch._compile import _disable_dynamo  # as `torch.compiler.disable`, but loads the compiler when it is called


def run_hooked(hook: Any, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run the forward that `module` had before it was hooked, and what `hook` does before and after it."""
    try:
        args, kwargs = hook.pre_forward(module, *args, **kwargs)
        if hook.no_grad:
            with torch.no_grad():
                output = module._old_forward(*args, **kwargs)
        else:
            output = module._old_forward(*args, **kwargs)
    except BaseException:
        hook.forward_failed(module)
        raise
    return hook.post_forward(module, output)


def _around(hook: Any, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    try:
        args, kwargs = _before(hook, module, args, kwargs)
        with torch.no_grad() if hook.no_grad else nullcontext():
            output = module._old_forward(*args, **kwargs)
    except BaseException:
        _failed(hook, module)
        raise
    return _after(hook, module, output)


@_disable_dynamo
def _before(
    hook: Any, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    return hook.pre_forward(module, *args, **kwargs)


@_disable_dynamo
def _after(hook: Any, module: Any, output: Any) -> Any:
    return hook.post_forward(module, output)


@_disable_dynamo
def _failed(hook: Any, module: Any) -> None:
    hook.forward_failed(module)


#: Do as `run_hooked` does, outside of graphs altogether; or only the hook, while the forward may be compiled.
run_outside_graphs = _disable_dynamo(run_hooked)
run_around_graphs = _disable_dynamo(_around, recursive=False)
