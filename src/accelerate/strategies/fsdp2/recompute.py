"""Activation checkpointing of units: activations are computed again in the backward pass instead of being kept.

The forward of a unit is replaced, rather than the unit wrapped in another module, so that names and classes stay.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.autograd.graph import save_on_cpu
from torch.utils.checkpoint import checkpoint


def recompute(modules: Iterable[torch.nn.Module], *, offload: bool = False) -> None:
    """Let `modules` compute their activations again in the backward pass.

    Args:
        offload: keep their inputs in host memory meanwhile.
    """
    run = _offloaded if offload else _recomputed
    for module in modules:
        if not _is_recomputed(module):
            module.forward = functools.wraps(module.forward)(functools.partial(run, module.forward))


def _recomputed(forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    return (
        checkpoint(forward, *args, use_reentrant=False, **kwargs)
        if torch.is_grad_enabled()
        else forward(*args, **kwargs)
    )


def _offloaded(forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    with save_on_cpu(pin_memory=torch.accelerator.is_available()):
        return _recomputed(forward, *args, **kwargs)


def _is_recomputed(module: torch.nn.Module) -> bool:
    forward = module.__dict__.get("forward")
    return isinstance(forward, functools.partial) and forward.func in (_recomputed, _offloaded)
