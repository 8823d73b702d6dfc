"""The weights of a dispatched model, also of the parts that are offloaded."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch

from accelerate.base.messages import message
from accelerate.hooks.align import AlignDevicesHook
from accelerate.hooks.aligned import align_module_device
from accelerate.hooks.base import ModelHook, SequentialHook


def get_state_dict_offloaded_model(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Return the state dict of a model whose offloaded parts have placeholders, with the weights in their place.

    Weights are on the CPU, or mapped from their files; what is resident is where it is.

    Raises:
        RuntimeError: something is on meta that no hook brings in; all of it is named.
    """
    offloaded = dict(offloaded_weights(model))
    tensors = dict(model.state_dict())
    lost = [name for name, tensor in tensors.items() if tensor.is_meta and name not in offloaded]
    if lost:
        raise RuntimeError(
            message(
                given=f"a {type(model).__name__} with tensors on meta: {', '.join(lost)}",
                why="they have no content, and no hook that knows where it is",
                allowed="models whose weights are in memory, or were offloaded when the model was dispatched",
                do="load these weights first",
            )
        )
    return {name: offloaded[name]().detach() if tensor.is_meta else tensor.detach() for name, tensor in tensors.items()}


def offloaded_weights(model: torch.nn.Module) -> Iterator[tuple[str, Callable[[], torch.Tensor]]]:
    """Yield the names of all weights that hooks bring in, each with what gets it on the CPU."""
    for path, module in model.named_modules(remove_duplicate=False):
        prefix = f"{path}." if path else ""
        for hook in align_hooks(module):
            for name in hook.names() if hook.offload else ():
                yield prefix + name, functools.partial(_weight, hook, name)


def _weight(hook: AlignDevicesHook, name: str) -> torch.Tensor:
    weights: Any = hook.weights_map
    return weights[name].to("cpu")


def align_hooks(module: torch.nn.Module) -> list[AlignDevicesHook]:
    """Return the hooks on a module that align devices, also those among several."""

    def inside(hook: ModelHook | None) -> Iterator[AlignDevicesHook]:
        if isinstance(hook, AlignDevicesHook):
            yield hook
        elif isinstance(hook, SequentialHook):
            for each in hook.hooks:
                yield from inside(each)

    return list(inside(module.__dict__.get("_hf_hook")))


def get_state_dict_from_offload(
    module: torch.nn.Module,
    module_name: str,
    state_dict: dict[str, Any],
    device_to_put_offload: torch.device | str | int = "cpu",
) -> dict[str, Any]:
    """Put the weights of one offloaded module into a state dict, which is returned.

    Args:
        module: the module.
        module_name: the name in the model of one of its tensors, such as "layer.weight".
        state_dict: where weights go whose names are in it already.
        device_to_put_offload: the device that they are brought to.
    """
    prefix = module_name.rpartition(".")[0]
    with align_module_device(module, device_to_put_offload):
        for key, tensor in module.state_dict().items():
            name = f"{prefix}.{key}" if prefix else key
            if name in state_dict:
                state_dict[name] = tensor
    return state_dict
