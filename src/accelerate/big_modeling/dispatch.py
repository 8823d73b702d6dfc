"""Spread a model over devices, and bring in for each forward what has no room on them."""

from __future__ import annotations

import functools
import importlib
import logging
import os
from collections.abc import Mapping
from typing import Any

import torch

from accelerate.base.messages import message
from accelerate.big_modeling.offloaded import OffloadedWeightsLoader
from accelerate.big_modeling.placement_plan import PlacementPlan, fill_folder
from accelerate.big_modeling.places import check_devices
from accelerate.big_modeling.settings import OffloadSettings
from accelerate.big_modeling.store import Index
from accelerate.hooks import (
    AlignDevicesHook,
    CpuOffload,
    UserCpuOffloadHook,
    _accelerate_added_attributes,
    add_hook_to_module,
    attach_align_device_hook,
)
from accelerate.hooks.tensors import all_module_tensors, as_device

logger = logging.getLogger("accelerate.big_modeling")

DeviceLike = torch.device | str | int


def cpu_offload(
    model: torch.nn.Module,
    execution_device: DeviceLike | None = None,
    offload_buffers: bool = False,
    state_dict: dict[str, torch.Tensor] | None = None,
    preload_module_classes: list[str] | None = None,
    *,
    offload_settings: OffloadSettings | None = None,
) -> torch.nn.Module:
    """Keep the weights of a model on the CPU, and bring those of each layer to a device for its forward.

    Args:
        model: the model, which is returned.
        execution_device: where its layers run; by default where its first parameter is.
        offload_buffers: keep buffers on the CPU too.
        state_dict: the weights; by default those of the model.
        preload_module_classes: names of classes whose weights come in all at once, with those of the modules in them.
        offload_settings: how weights are brought to where layers run.
    """
    if execution_device is None:
        execution_device = next(iter(model.parameters())).device
    weights = model.state_dict() if state_dict is None else state_dict
    on_host = {name: tensor.to("cpu") for name, tensor in weights.items()}
    return _offload_all(
        model, OffloadedWeightsLoader(on_host), execution_device, offload_buffers, preload_module_classes
    )


def disk_offload(
    model: torch.nn.Module,
    offload_dir: str | os.PathLike[str],
    execution_device: DeviceLike | None = None,
    offload_buffers: bool = False,
    preload_module_classes: list[str] | None = None,
    *,
    offload_settings: OffloadSettings | None = None,
) -> torch.nn.Module:
    """Keep the weights of a model on the disk, and bring those of each layer to a device for its forward.

    Args:
        model: the model, which is returned.
        offload_dir: the folder for the weights. Those that its index has already are taken from there.
        execution_device: where its layers run; by default where its first parameter is.
        offload_buffers: keep buffers on the disk too.
        preload_module_classes: names of classes whose weights come in all at once, with those of the modules in them.
        offload_settings: how weights are brought to where layers run.
    """
    if execution_device is None:
        execution_device = next(iter(model.parameters())).device
    fill_folder(offload_dir, {name: tensor for name, tensor in model.state_dict().items() if not tensor.is_meta})
    weights = OffloadedWeightsLoader(save_folder=offload_dir, settings=offload_settings)
    return _offload_all(model, weights, execution_device, offload_buffers, preload_module_classes)


def _offload_all(
    model: torch.nn.Module,
    weights: OffloadedWeightsLoader,
    execution_device: DeviceLike,
    offload_buffers: bool,
    preload_module_classes: list[str] | None,
) -> torch.nn.Module:
    add_hook_to_module(model, AlignDevicesHook(io_same_device=True), append=True)
    attach_align_device_hook(
        model,
        execution_device=execution_device,
        offload=True,
        offload_buffers=offload_buffers,
        weights_map=weights,
        preload_module_classes=preload_module_classes,
    )
    return model


def cpu_offload_with_hook(
    model: torch.nn.Module,
    execution_device: DeviceLike | None = None,
    prev_module_hook: UserCpuOffloadHook | None = None,
) -> tuple[torch.nn.Module, UserCpuOffloadHook]:
    """Keep a model on the CPU until it runs, and then on a device until it is told to go or the next model comes.

    Args:
        model: the model.
        execution_device: where it runs; by default the accelerator of this process, if there is one.
        prev_module_hook: what this returned for the model that runs before it, and goes when this one comes.

    Returns:
        The model, and what offloads it (`.offload()`) and ends that (`.remove()`).
    """
    hook = CpuOffload(execution_device, prev_module_hook)
    add_hook_to_module(model, hook, append=True)
    return model, UserCpuOffloadHook(model, hook)


def dispatch_model(
    model: torch.nn.Module,
    device_map: Mapping[str, Any],
    main_device: DeviceLike | None = None,
    state_dict: dict[str, torch.Tensor] | None = None,
    offload_dir: str | os.PathLike[str] | None = None,
    offload_index: Index | None = None,
    offload_buffers: bool = False,
    skip_keys: str | list[str] | None = None,
    preload_module_classes: list[str] | None = None,
    force_hooks: bool = False,
    *,
    offload_settings: OffloadSettings | None = None,
) -> torch.nn.Module:
    """Put the parts of a model on the devices that a map says, and have inputs follow.

    Args:
        model: the model, which is returned, with the map as `hf_device_map`.
        device_map: devices by name of modules or tensors; "cpu" and "disk" are places to keep weights in while there is
            another device to run on.
        main_device: where offloaded parts run; by default the first device of the map that is neither of these.
        state_dict: the weights of parts on the CPU; by default those of the model.
        offload_dir: the folder with the weights of parts on the disk; they are written there if it has no index.
        offload_index: where these weights are, see `store`.
        offload_buffers: offload buffers too.
        skip_keys: names of inputs and outputs that stay where they are.
        preload_module_classes: names of classes whose weights come in all at once, with those of the modules in them.
        force_hooks: put hooks on a model that is on one device, too.
        offload_settings: how weights are brought to where parts run.

    Raises:
        ValueError: the map leaves out part of the model, a device doesn't exist, or weights go to the disk and there is
            neither a folder nor an index.
    """
    # Published code replaces these two where they are public.
    public = importlib.import_module("accelerate.big_modeling")
    public.check_device_map(model, device_map)
    check_devices(device_map)
    devices = set(device_map.values())
    if len(devices) == 1 and "disk" not in devices and not force_hooks:
        _move_whole(model, as_device(next(iter(devices))))
    else:
        plan = PlacementPlan(model, device_map, main_device, offload_buffers)
        weights = plan.weights(state_dict, offload_dir, offload_index, offload_settings)
        shared: dict[str, Any] = {
            "weights_map": weights,
            "offload_buffers": offload_buffers,
            "skip_keys": skip_keys,
            "tied_params_map": plan.tied_storages(),
        }
        public.attach_align_device_hook_on_blocks(
            model,
            execution_device=plan.execution,
            offload=plan.offload,
            preload_module_classes=preload_module_classes,
            **shared,
        )
        plan.attach_to_single_tensors(shared)
        plan.share_resident(weights)
        _guard_moves(model)
    model.hf_device_map = dict(device_map)  # type: ignore[assignment]
    return model


def _move_whole(model: torch.nn.Module, device: torch.device) -> None:
    """Move a model to one device.

    Raises:
        ValueError: parts of it have no content.
    """
    tensors = dict(all_module_tensors(model, recurse=True))
    empty = [name for name, tensor in tensors.items() if tensor.is_meta]
    if empty and device.type != "meta":
        raise ValueError(
            message(
                given=f"a {type(model).__name__} for device {device} with tensors on meta: {', '.join(empty)}",
                why="they have no content that could be moved",
                allowed="a model whose weights are in memory",
                do="load the checkpoint first, or use `load_checkpoint_and_dispatch`",
            )
        )
    if any(tensor.device != device for tensor in tensors.values()):
        model.to(device)


def _guard_moves(model: torch.nn.Module) -> None:
    """Have methods that move a model warn, or refuse while parts of it have no content."""
    for name in _accelerate_added_attributes:
        if hasattr(type(model), name):
            original = getattr(model, name)
            guarded = functools.partial(_guarded_move, model, name)
            model.__dict__[name] = functools.update_wrapper(guarded, original)


def _guarded_move(model: torch.nn.Module, method: str, *args: Any, **kwargs: Any) -> torch.nn.Module:
    if method != "to" or any(_is_device(each) for each in (*args, *kwargs.values())):
        logger.warning(f"`.{method}(...)` on a dispatched model takes its parts away from where its hooks expect them.")
    empty = [name for name, parameter in model.named_parameters() if parameter.is_meta]
    if empty:
        shown = ", ".join(empty[:3]) + (", …" if len(empty) > 3 else "")
        raise RuntimeError(
            message(
                given=f"`.{method}(...)` on a {type(model).__name__} that is dispatched with offloaded parts",
                why=f"its offloaded parts have nothing to move: {len(empty)} parameters are placeholders ({shown})",
                allowed="inputs on any device, which follow the model",
                do="leave the model where it is, or dispatch it anew after `remove_hook_from_submodules(model)`",
            )
        )
    moved: torch.nn.Module = getattr(type(model), method)(model, *args, **kwargs)
    return moved


def _is_device(value: Any) -> bool:
    return isinstance(value, (str, int, torch.device, torch.Tensor))
