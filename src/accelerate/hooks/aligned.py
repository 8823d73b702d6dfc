"""Look at, or change, the weights of a module outside of its forward, wherever they are."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch

from accelerate.hooks.align import AlignDevicesHook
from accelerate.hooks.placement import set_module_tensor_to_device
from accelerate.hooks.tensors import as_device


def has_offloaded_params(module: torch.nn.Module) -> bool:
    """Return whether the weights of `module` are brought in by its hook, for its forward only."""
    hook = module.__dict__.get("_hf_hook")
    return isinstance(hook, AlignDevicesHook) and hook.offload


@contextlib.contextmanager
def align_module_device(
    module: torch.nn.Module, execution_device: torch.device | str | int | None = None
) -> Iterator[None]:
    """Have the parameters of `module` itself on `execution_device` within the block.

    Args:
        module: a module; not those in it.
        execution_device: where to; by default, where an offloaded module runs, and any other is.
    """
    if has_offloaded_params(module):
        with _onloaded(module, execution_device):
            yield
    elif execution_device is not None:
        with _moved(module, execution_device):
            yield
    else:
        yield


@contextlib.contextmanager
def _onloaded(module: torch.nn.Module, execution_device: torch.device | str | int | None) -> Iterator[None]:
    """Have the hook of `module` bring in its weights."""
    hook: AlignDevicesHook = module.__dict__["_hf_hook"]
    usual = hook.execution_device
    if execution_device is not None:
        hook.execution_device = execution_device
    try:
        hook.pre_forward(module)
        yield
    finally:
        hook.post_forward(module, None)
        hook.execution_device = usual


@contextlib.contextmanager
def _moved(module: torch.nn.Module, execution_device: torch.device | str | int) -> Iterator[None]:
    """Move the parameters of `module`, and back again with what the block made of them."""
    before = dict(module.named_parameters(recurse=False))
    try:
        for name in before:
            set_module_tensor_to_device(module, name, execution_device)
        yield
    finally:
        for name, parameter in before.items():
            if as_device(execution_device).type == "meta":
                module._parameters[name] = parameter
            else:
                set_module_tensor_to_device(module, name, parameter.device)
