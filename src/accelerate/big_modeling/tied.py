"""Parameters that several names share: finding the names, tying them again, and whether a device map parts them."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch

from accelerate.base.messages import message
from accelerate.hooks.placement import find_store
from accelerate.hooks.tensors import prefixed_modules

logger = logging.getLogger("accelerate.utils.modeling")


def find_tied_parameters(model: torch.nn.Module, **kwargs: Any) -> list[list[str]]:
    """Return the groups of names that stand for one parameter, each group sorted.

    Args:
        model: a model; modules that are in it several times count under each name.
        kwargs: accepted for code that was written for older releases, and not used.
    """
    names: dict[int, list[str]] = {}
    for prefix, module in prefixed_modules(model):
        for key, parameter in module._parameters.items():
            if parameter is not None:
                names.setdefault(id(parameter), []).append(prefix + key)
    return [sorted(group) for group in names.values() if len(group) > 1]


def retie_parameters(model: torch.nn.Module, tied_params: Iterable[Sequence[str]]) -> None:
    """Make the names of each group stand for one parameter again, after loading made several of it.

    Args:
        model: the model.
        tied_params: groups of names. Of each, the first parameter with content, if there is one, stands for all.
    """
    for group in tied_params:
        places = [find_store(model, name) for name in group]
        with_content = [store[key] for store, key in places if store[key] is not None and not store[key].is_meta]
        if with_content:
            for store, key in places:
                store[key] = with_content[0]


def check_tied_parameters_in_config(model: Any) -> bool:
    """Return whether the configuration of a transformers model says that weights are tied."""
    config = getattr(model, "config", None)
    if config is None or not hasattr(model, "get_output_embeddings"):
        return False
    text = config.get_text_config(decoder=True) if hasattr(config, "get_text_config") else config
    words = getattr(text, "tie_word_embeddings", False) and model.get_output_embeddings() is not None
    coders = getattr(config, "is_encoder_decoder", False) and getattr(config, "tie_encoder_decoder", False)
    return bool(words or coders or any(hasattr(module, "_tie_weights") for module in model.modules()))


def check_tied_parameters_on_same_device(tied_params: Iterable[Sequence[str]], device_map: Mapping[str, Any]) -> None:
    """Warn about groups whose names a device map puts on different devices.

    Args:
        tied_params: groups of names.
        device_map: devices of modules and parameters by name.
    """
    for group in tied_params:
        devices = {name: device_of_name(name, device_map) for name in group}
        if len(set(devices.values())) > 1:
            logger.warning(
                f"One weight under several names is sent to several devices, where it will come apart: {devices}. "
                "Give these names one device, or let device_map='auto' decide."
            )


def device_of_name(name: str, device_map: Mapping[str, Any]) -> Any:
    """Return where a device map puts a parameter: what it says of it, else of the nearest module that it is in.

    Raises:
        ValueError: it says nothing about it.
    """
    for part in (name, *modules_around(name)):
        if part in device_map:
            return device_map[part]
    raise ValueError(
        message(
            given=f"a device map of {', '.join(map(repr, device_map)) or 'nothing'}",
            why=f"the device_map has no entry for {name} or a module around it",
            allowed="names of modules or parameters, '' for the whole model",
            do=f"add a module that {name} is in",
        )
    )


def placed_by(device_map: Mapping[str, Any], name: str) -> Any:
    """Return where a device map puts a parameter, or None if it says nothing about it."""
    return next((device_map[part] for part in (name, *modules_around(name)) if part in device_map), None)


def modules_around(name: str) -> Iterator[str]:
    """Yield the modules that something is in, from inside out; the last is the model."""
    while name:
        name = name.rpartition(".")[0]
        yield name
