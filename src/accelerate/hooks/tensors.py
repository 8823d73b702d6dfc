"""The tensors of a module by name, and what can be asked about one: its storage, its device, its like on meta."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch


def named_module_tensors(
    module: torch.nn.Module, include_buffers: bool = True, recurse: bool = False, remove_non_persistent: bool = False
) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the parameters and buffers of a module with their names.

    Args:
        module: a module.
        include_buffers: yield buffers, after the parameters.
        recurse: also those of the modules in it.
        remove_non_persistent: leave out buffers that are not part of the state dict.
    """
    yield from module.named_parameters(recurse=recurse)
    if include_buffers:
        left_out = get_non_persistent_buffers(module, recurse, fqns=True) if remove_non_persistent else set()
        yield from ((name, each) for name, each in module.named_buffers(recurse=recurse) if name not in left_out)


def prefixed_modules(module: torch.nn.Module) -> Iterator[tuple[str, torch.nn.Module]]:
    """Yield `module` and everything in it in the order of definition, each with what the names in it begin with.

    A module that is in several places is yielded for each. Not recursive, which takes a third of the time.
    """
    left = [("", module)]
    while left:
        prefix, each = left.pop()
        yield prefix, each
        inner = [(f"{prefix}{key}.", child) for key, child in each._modules.items() if child is not None]
        left += reversed(inner)


def all_module_tensors(module: torch.nn.Module, recurse: bool) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the parameters and buffers of a module under every name they have, tied ones too."""
    modules = list(prefixed_modules(module)) if recurse else [("", module)]
    for prefix, each in modules:
        yield from ((prefix + key, value) for key, value in each._parameters.items() if value is not None)
    for prefix, each in modules:
        yield from ((prefix + key, value) for key, value in each._buffers.items() if value is not None)


def state_names(module: torch.nn.Module) -> Iterator[str]:
    """Yield the names of the state dict of a module, tied ones too, without building it."""
    for prefix, each in prefixed_modules(module):
        yield from (prefix + key for key, value in each._parameters.items() if value is not None)
        kept = (key for key in each._buffers if key not in each._non_persistent_buffers_set)
        yield from (prefix + key for key in kept if each._buffers[key] is not None)


def get_non_persistent_buffers(module: torch.nn.Module, recurse: bool = False, fqns: bool = False) -> set[str]:
    """Return the names of the buffers that are not part of the state dict.

    Args:
        module: a module.
        recurse: also of the modules in it.
        fqns: full names, such as "rotary.inv_freq", instead of the last part of them.
    """
    modules = module.named_modules() if recurse else [("", module)]
    return {
        f"{name}.{buffer}" if fqns and name else buffer
        for name, each in modules
        for buffer in each._non_persistent_buffers_set
    }


def id_tensor_storage(tensor: torch.Tensor) -> tuple[torch.device, int, int]:
    """Return what two tensors have in common if, and only if, they share memory: device, address and size."""
    storage = tensor.untyped_storage()
    address = storage.data_ptr() or id(tensor)  # storages without memory, as on meta, have no address
    return tensor.device, address, storage.nbytes()


def as_device(device: torch.device | str | int) -> torch.device:
    """Return a device as torch knows it; a number counts the accelerators of this machine."""
    if isinstance(device, int):
        accelerator = torch.accelerator.current_accelerator()
        return torch.device("cuda" if accelerator is None else accelerator.type, device)
    return torch.device(device)


def check_device_same(first_device: torch.device, second_device: torch.device) -> bool:
    """Return whether two devices are one; an accelerator without number is the current one, number 0 unless changed."""
    if first_device.type != second_device.type:
        return False
    if first_device.type in ("cpu", "meta"):  # there is one of each, whatever number it was given
        return True
    return (first_device.index or 0) == (second_device.index or 0)


def meta_like(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor without data in the place of `tensor`: same class, shape, dtype and attributes, on meta."""
    empty = torch.empty_like(tensor.data, device="meta")
    return wrapped_like(empty, tensor) if isinstance(tensor, torch.nn.Parameter) else empty


def wrapped_like(data: torch.Tensor, parameter: torch.nn.Parameter) -> torch.nn.Parameter:
    """Return `data` as a parameter of the class, with the attributes and the need for gradients, of `parameter`.

    Args:
        data: what the parameter holds; a tensor of a class of its own, such as a quantized one, stays of that class.
        parameter: the model. What cannot have gradients, such as integers, has none.
    """
    requires_grad = parameter.requires_grad and (data.is_floating_point() or data.is_complex())
    if type(data) in _PLAIN:
        new: Any = torch.Tensor._make_subclass(type(parameter), data, requires_grad)
    else:
        new = torch.nn.Parameter(data, requires_grad=requires_grad)
    if parameter.__dict__:
        new.__dict__.update(parameter.__dict__)
    return new


#: The classes of tensors that are nothing but their data.
_PLAIN = (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)
