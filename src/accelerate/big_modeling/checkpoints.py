"""From a checkpoint to a model that runs: plan where its parts go, load them there, and dispatch it."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Any

import torch

from accelerate.base.messages import did_you_mean, message
from accelerate.big_modeling.budget import get_balanced_memory
from accelerate.big_modeling.device_map import infer_auto_device_map
from accelerate.big_modeling.dispatch import dispatch_model
from accelerate.big_modeling.loading import load_checkpoint_in_model
from accelerate.big_modeling.settings import OffloadSettings

#: How a device map can be asked for by name.
PLANS = ("auto", "balanced", "balanced_low_0", "sequential")


def load_checkpoint_and_dispatch(
    model: torch.nn.Module,
    checkpoint: str | os.PathLike[str],
    device_map: str | Mapping[str, Any] | None = None,
    max_memory: Mapping[int | str, int | str] | None = None,
    no_split_module_classes: str | Iterable[str] | None = None,
    offload_folder: str | os.PathLike[str] | None = None,
    offload_buffers: bool = False,
    dtype: torch.dtype | str | None = None,
    offload_state_dict: bool | None = None,
    skip_keys: str | list[str] | None = None,
    preload_module_classes: list[str] | None = None,
    force_hooks: bool = False,
    strict: bool = False,
    full_state_dict: bool = True,
    broadcast_from_rank0: bool = False,
    *,
    memory_map: bool = True,
    offload_settings: OffloadSettings | None = None,
) -> torch.nn.Module:
    """Load a checkpoint into a model and spread it over devices.

    Args:
        model: the model, usually built without memory; it is returned.
        checkpoint: see `load_checkpoint_in_model`.
        device_map: a map; "auto" or "balanced" for an even share on each accelerator, "balanced_low_0" with little on
            the first, "sequential" to fill one after the other; None to load only.
        max_memory: see `get_max_memory`.
        no_split_module_classes: names of classes that are not to be split.
        offload_folder: see `load_checkpoint_in_model`.
        offload_buffers: offload buffers too.
        dtype: what to convert floating-point tensors to.
        offload_state_dict: see `load_checkpoint_in_model`.
        skip_keys: see `dispatch_model`.
        preload_module_classes: see `dispatch_model`.
        force_hooks: see `dispatch_model`.
        strict: have the checkpoint hold the names of the model, no more and no less.
        full_state_dict: see `load_checkpoint_in_model`.
        broadcast_from_rank0: see `load_checkpoint_in_model`.
        memory_map: see `load_checkpoint_in_model`.
        offload_settings: see `dispatch_model`.

    Raises:
        ValueError: a plan of another name, or what the functions above refuse.
    """
    if isinstance(device_map, str):
        device_map = planned(
            model, device_map, max_memory, no_split_module_classes, dtype=dtype, offload_buffers=offload_buffers
        )
    load_checkpoint_in_model(
        model,
        checkpoint,
        device_map=device_map,
        offload_folder=offload_folder,
        dtype=dtype,
        offload_state_dict=bool(offload_state_dict),
        offload_buffers=offload_buffers,
        strict=strict,
        full_state_dict=full_state_dict,
        broadcast_from_rank0=broadcast_from_rank0,
        memory_map=memory_map,
    )
    if device_map is None:
        return model
    return dispatch_model(
        model,
        device_map=device_map,
        offload_dir=offload_folder,
        offload_buffers=offload_buffers,
        skip_keys=skip_keys,
        preload_module_classes=preload_module_classes,
        force_hooks=force_hooks,
        offload_settings=offload_settings,
    )


def planned(
    model: torch.nn.Module,
    plan: str,
    max_memory: Mapping[int | str, int | str] | None = None,
    no_split: str | Iterable[str] | None = None,
    *,
    dtype: Any = None,
    special_dtypes: Mapping[str, Any] | None = None,
    offload_buffers: bool = False,
) -> Mapping[str, Any]:
    """Return the device map of a plan by name; see `load_checkpoint_and_dispatch` and `infer_auto_device_map`.

    Raises:
        ValueError: there is no plan of that name.
    """
    if plan not in PLANS:
        raise ValueError(
            message(
                given=f"device_map={plan!r}",
                why="there is no plan of that name",
                allowed=f"{', '.join(map(repr, PLANS))}; a device for the whole model is {{'': device}}",
                do=did_you_mean(plan, PLANS),
            )
        )
    sizes: dict[str, Any] = {"dtype": dtype, "special_dtypes": special_dtypes}
    if plan != "sequential":
        max_memory = get_balanced_memory(model, max_memory, no_split, low_zero=plan == "balanced_low_0", **sizes)
    return infer_auto_device_map(model, max_memory, no_split, offload_buffers=offload_buffers, **sizes)
