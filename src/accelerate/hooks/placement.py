"""Put one tensor of a module somewhere else, or something else in its place."""

from __future__ import annotations

from typing import Any

import torch

from accelerate.base.messages import did_you_mean, message
from accelerate.devices.memory import clear_device_cache
from accelerate.hooks.tensors import as_device, meta_like, wrapped_like

#: For each storage that several names share, by its address: where it is already, by device.
TiedTensors = dict[int, dict[torch.device, torch.Tensor]]
#: One entry of these: the address of a storage, and a device where it is.
Shared = tuple[int, torch.device]

#: Parameters of bitsandbytes: they quantize when they are moved to an accelerator, and carry their statistics.
BNB_CLASSES = ("Int8Params", "Params4bit", "FP4Params")


def set_module_tensor_to_device(
    module: torch.nn.Module,
    tensor_name: str,
    device: torch.device | str | int,
    value: torch.Tensor | None = None,
    dtype: torch.dtype | None = None,
    fp16_statistics: torch.Tensor | None = None,
    tied_params_map: TiedTensors | None = None,
    non_blocking: bool = False,
    clear_cache: bool = True,
) -> None:
    """Move a parameter or buffer of `module` to `device`, or put `value` there in its place.

    The class of a parameter, its attributes and whether it requires gradients stay.

    Args:
        module: the module that has the tensor, itself or in something in it.
        tensor_name: the name from there, such as "layers.0.weight".
        device: where to; "meta" drops the data.
        value: the new content, of the same shape. It isn't copied if it is on `device` already.
        dtype: what to convert to, unless the content is integers; by default that of the tensor which is replaced.
        fp16_statistics: the scales that belong to an int8 `value`.
        tied_params_map: where storages that several names share are already. One in it is not moved twice.
        non_blocking: let the copy overlap with work on the host.
        clear_cache: give memory that this frees on an accelerator back to the device.

    Raises:
        ValueError: there is no such tensor, `value` has another shape, or a tensor on meta is to leave it without one.
    """
    store, key = find_store(module, tensor_name)
    old, target = store[key], as_device(device)
    _check(module, tensor_name, old, target, value)
    shared = shared_places(tied_params_map, old if value is None else value)
    if shared is not None and target in shared:
        store[key] = shared[target]
        return
    new: Any = _placed(old, target, value, dtype, non_blocking)
    store[key] = new
    if fp16_statistics is not None:
        new.SCB = fp16_statistics.to(target)
    if shared is not None:
        shared[target] = new
    if clear_cache and new is not old and old.device.type not in ("cpu", "meta") and old.device != target:
        del old
        clear_device_cache()


def find_store(module: torch.nn.Module, name: str) -> tuple[dict[str, Any], str]:
    """Return the dictionary of parameters or buffers that holds the tensor `name` of `module`, and its key there.

    Raises:
        ValueError: there is no such tensor.
    """
    path, _, key = name.rpartition(".")
    owner = module.get_submodule(path)
    for store in (owner._parameters, owner._buffers):
        if key in store:
            return store, key
    known = [*owner._parameters, *owner._buffers]
    raise ValueError(
        message(
            given=f"{name!r} of a {type(module).__name__}",
            why=f"{type(owner).__name__} has no tensor called {key!r}",
            allowed=", ".join(known) or "none: it has no tensors",
            do=did_you_mean(key, known) if known else "name a tensor of another module",
        )
    )


def _check(
    module: torch.nn.Module, name: str, old: torch.Tensor | None, device: torch.device, value: torch.Tensor | None
) -> None:
    """Refuse what has no content to move, and content that does not fit."""
    if old is None:
        why = f"{name} is None: this {type(module).__name__} was built without it"
        raise ValueError(_refused(name, why, "a tensor that the module has", "build the module with it"))
    if value is None and old.device.type == "meta" and device.type != "meta":
        why = f"{name} is on the meta device, where a tensor has no content, so we need a `value` to put it on {device}"
        raise ValueError(_refused(name, why, "a `value` of the same shape", f"load {name}, and pass it as `value`"))
    if value is not None and value.shape != old.shape and type(old).__name__ not in BNB_CLASSES:
        why = f"the value has shape {tuple(value.shape)}, and {name} has shape {tuple(old.shape)}"
        do = "check that the checkpoint was written by a model of this configuration"
        raise ValueError(_refused(name, why, f"a value of shape {tuple(old.shape)}", do))


def _refused(name: str, why: str, allowed: str, do: str) -> str:
    return message(given=f"a place, or a content, for the tensor {name}", why=why, allowed=allowed, do=do)


def shared_places(tied: TiedTensors | None, tensor: torch.Tensor) -> dict[torch.device, torch.Tensor] | None:
    """Return where the storage of `tensor` is already, if several names share it."""
    return tied.get(tensor.data_ptr()) if tied and tensor.device.type != "meta" else None


def _placed(
    old: torch.Tensor, device: torch.device, value: torch.Tensor | None, dtype: torch.dtype | None, non_blocking: bool
) -> torch.Tensor:
    """Return what takes the place of `old`; itself if it is there already."""
    if device.type == "meta":
        return old if old.device.type == "meta" else meta_like(old)
    if type(old).__name__ in BNB_CLASSES:
        return placed_quantized(old, device, value)
    source: torch.Tensor = old.data if value is None else value.detach()
    if dtype is None:
        dtype = old.dtype
    elif not (source.is_floating_point() or source.is_complex()):
        dtype = source.dtype
    data = source.to(device=device, dtype=dtype, non_blocking=non_blocking)
    if value is None and data is source:
        return old
    new: Any = wrapped_like(data, old) if isinstance(old, torch.nn.Parameter) else data
    if value is None and old.grad is not None:
        new.grad = old.grad.to(device=device, dtype=dtype, non_blocking=non_blocking)
    return new


def placed_quantized(old: torch.Tensor, device: torch.device, value: torch.Tensor | None) -> torch.Tensor:
    """Return a parameter of bitsandbytes on `device`: its class converts what it is built from, and moves the rest."""
    if value is None:
        return old.to(device)
    if type(value) is type(old):
        return value.to(device)
    build: Any = type(old)
    return build(value, requires_grad=old.requires_grad, **old.__dict__).to(device)
