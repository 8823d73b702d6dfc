"""Put `AlignDevicesHook` on the modules of a model: on everything, or block by block as a device map says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from accelerate.hooks.align import AlignDevicesHook
from accelerate.hooks.base import add_hook_to_module
from accelerate.hooks.placement import TiedTensors
from accelerate.hooks.tensors import state_names
from accelerate.hooks.weights import PrefixedDataset

DeviceLike = torch.device | str | int


def attach_execution_device_hook(
    module: torch.nn.Module,
    execution_device: DeviceLike,
    skip_keys: str | list[str] | None = None,
    preload_module_classes: Sequence[str] | None = None,
    tied_params_map: TiedTensors | None = None,
) -> None:
    """Have every module in `module` that holds weights run on `execution_device`; hooks that are there stay.

    Args:
        module: a module; it counts itself.
        execution_device: where its weights are and it runs.
        skip_keys: names of inputs that stay where they are.
        preload_module_classes: names of classes whose instances get a hook, and the modules in them none.
        tied_params_map: see `AlignDevicesHook`.
    """
    if "_hf_hook" not in module.__dict__ and next(state_names(module), None) is not None:
        hook = AlignDevicesHook(execution_device, skip_keys=skip_keys, tied_params_map=tied_params_map)
        add_hook_to_module(module, hook)
    if preload_module_classes is not None and type(module).__name__ in preload_module_classes:
        return
    for child in module.children():
        attach_execution_device_hook(child, execution_device, skip_keys, preload_module_classes, tied_params_map)


def attach_align_device_hook(
    module: torch.nn.Module,
    execution_device: DeviceLike | None = None,
    offload: bool = False,
    weights_map: Mapping[str, Any] | None = None,
    offload_buffers: bool = False,
    module_name: str = "",
    skip_keys: str | list[str] | None = None,
    preload_module_classes: Sequence[str] | None = None,
    tied_params_map: TiedTensors | None = None,
) -> None:
    """Put a hook on every module in `module` that has tensors of its own.

    Args:
        module: a module; it counts itself.
        execution_device: where the modules run.
        offload: bring in the weights of each for its forward only.
        weights_map: the weights of the whole model by name.
        offload_buffers: offload buffers too.
        module_name: the name of `module` in the model.
        skip_keys: names of inputs and outputs that stay where they are.
        preload_module_classes: names of classes whose weights come in all at once, with those of the modules in them.
        tied_params_map: see `AlignDevicesHook`.
    """
    at_once = offload and preload_module_classes is not None and type(module).__name__ in preload_module_classes
    if at_once or _has_tensors(module):
        hook = AlignDevicesHook(
            execution_device=execution_device,
            offload=offload,
            weights_map=None if weights_map is None else PrefixedDataset(weights_map, _prefix(module_name)),
            offload_buffers=offload_buffers,
            place_submodules=at_once,
            skip_keys=skip_keys,
            tied_params_map=tied_params_map,
        )
        add_hook_to_module(module, hook, append=True)
    if at_once:
        return
    for name, child in module.named_children():
        attach_align_device_hook(
            child,
            execution_device=execution_device,
            offload=offload,
            weights_map=weights_map,
            offload_buffers=offload_buffers,
            module_name=_prefix(module_name) + name,
            skip_keys=skip_keys,
            preload_module_classes=preload_module_classes,
            tied_params_map=tied_params_map,
        )


def attach_align_device_hook_on_blocks(
    module: torch.nn.Module,
    execution_device: DeviceLike | Mapping[str, DeviceLike | None] | None = None,
    offload: bool | Mapping[str, bool] = False,
    weights_map: Mapping[str, Any] | None = None,
    offload_buffers: bool = False,
    module_name: str = "",
    skip_keys: str | list[str] | None = None,
    preload_module_classes: Sequence[str] | None = None,
    tied_params_map: TiedTensors | None = None,
) -> None:
    """Put hooks on the blocks of a model, block by block, and one on the model that returns outputs where inputs were.

    Args:
        module: a model, or with `module_name` a part of it.
        execution_device: where the model runs, or each block by its name.
        offload: whether its weights are brought in for the forward only, or for each block by its name.
        weights_map: the weights of the whole model by name.
        offload_buffers: offload buffers too.
        module_name: the name of `module` in the model.
        skip_keys: names of inputs and outputs that stay where they are.
        preload_module_classes: names of classes whose weights come in all at once, with those of the modules in them.
        tied_params_map: see `AlignDevicesHook`.
    """
    shared: dict[str, Any] = {
        "offload_buffers": offload_buffers,
        "skip_keys": skip_keys,
        "tied_params_map": tied_params_map,
    }
    if not isinstance(execution_device, Mapping) and not isinstance(offload, Mapping):
        if offload:
            shared |= {"weights_map": weights_map, "preload_module_classes": preload_module_classes}
            attach_align_device_hook(module, execution_device, True, module_name=module_name, **shared)
        else:
            hook = AlignDevicesHook(execution_device, io_same_device=True, place_submodules=True, **shared)
            add_hook_to_module(module, hook)
        return
    devices, offloads = _as_blocks(execution_device, offload)
    _attach_block(module, module_name, devices, offloads, weights_map, preload_module_classes, shared)
    for name, child in module.named_children():
        attach_align_device_hook_on_blocks(
            child,
            devices,
            offloads,
            weights_map=weights_map,
            module_name=_prefix(module_name) + name,
            preload_module_classes=preload_module_classes,
            **shared,
        )


def _as_blocks(
    execution_device: DeviceLike | Mapping[str, DeviceLike | None] | None, offload: bool | Mapping[str, bool]
) -> tuple[Mapping[str, DeviceLike | None], Mapping[str, bool]]:
    """Return devices and offloading both by block, over the blocks that one of them names."""
    if isinstance(execution_device, Mapping):
        blocks = offload if isinstance(offload, Mapping) else dict.fromkeys(execution_device, offload)
        return execution_device, blocks
    assert isinstance(offload, Mapping)
    return dict.fromkeys(offload, execution_device), offload


def _attach_block(
    module: torch.nn.Module,
    name: str,
    devices: Mapping[str, DeviceLike | None],
    offloads: Mapping[str, bool],
    weights_map: Mapping[str, Any] | None,
    preload: Sequence[str] | None,
    shared: dict[str, Any],
) -> None:
    """Put the hooks on one block, if `name` is one, and on the whole model in any case."""
    root = name == ""
    on_device = {key: value for key, value in shared.items() if key != "offload_buffers"}
    if name not in devices or name not in offloads:
        if root:
            hook = AlignDevicesHook(devices.get(""), io_same_device=True, **on_device)
            add_hook_to_module(module, hook, append=True)
        return
    device = devices[name]
    if not offloads[name]:
        hook = AlignDevicesHook(device, io_same_device=root, place_submodules=True, **shared)
        add_hook_to_module(module, hook)
    else:
        attach_align_device_hook(
            module,
            device,
            True,
            weights_map=weights_map,
            module_name=name,
            preload_module_classes=preload,
            **shared,
        )
        if "_hf_hook" not in module.__dict__:
            add_hook_to_module(module, AlignDevicesHook(device, io_same_device=root, **on_device))
    if device is not None:
        attach_execution_device_hook(module, device, preload_module_classes=preload, **on_device)


def _has_tensors(module: torch.nn.Module) -> bool:
    own = (*module._parameters.values(), *module._buffers.values())
    return any(tensor is not None for tensor in own)


def _prefix(name: str) -> str:
    return f"{name}." if name else ""
