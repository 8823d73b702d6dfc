"""Load a model with its linear layers in few bits: planned with the sizes that they will have, quantized one by one.

Weights that are to be quantized are mapped from their files, not read: at any time one layer is there in full, and
everything that is done already in few bits. All other weights go straight to their places. Which library does it is a
matter of the configuration, see `quantization_layers`.
"""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch

from accelerate.base.messages import message
from accelerate.big_modeling.checkpoints import planned
from accelerate.big_modeling.device_map import check_device_map
from accelerate.big_modeling.dispatch import dispatch_model
from accelerate.big_modeling.loading import all_places, load_checkpoint_in_model
from accelerate.big_modeling.locate import open_all
from accelerate.big_modeling.placement_plan import PlacementPlan
from accelerate.big_modeling.places import check_devices
from accelerate.big_modeling.quantization_layers import (
    Quantizer,
    check_named,
    get_keys_to_not_convert,
    is_named,
    linear_layers,
    quantizer_for,
    replace,
)
from accelerate.big_modeling.store import Index, offload_weight, save_offload_index
from accelerate.big_modeling.tied import placed_by
from accelerate.devices.select import default_device
from accelerate.hooks.tensors import as_device, meta_like

logger = logging.getLogger("accelerate.utils.bnb")


def load_and_quantize_model(
    model: torch.nn.Module,
    bnb_quantization_config: Any,
    weights_location: str | os.PathLike[str] | None = None,
    device_map: str | Mapping[str, Any] | None = None,
    no_split_module_classes: str | Iterable[str] | None = None,
    max_memory: Mapping[int | str, int | str] | None = None,
    offload_folder: str | os.PathLike[str] | None = None,
    offload_state_dict: bool = False,
) -> torch.nn.Module:
    """Load a checkpoint into a model with its linear layers quantized, and spread it over devices.

    Args:
        model: the model, usually built without memory. One with its weights in memory is quantized as it is.
        bnb_quantization_config: a `BnbQuantizationConfig` or a `TorchAoQuantizationConfig`.
        weights_location: the checkpoint, see `load_checkpoint_in_model`.
        device_map: a map, or the name of a plan, see `load_checkpoint_and_dispatch`; by default all is on one device.
        no_split_module_classes: names of classes that are not to be split, for plans.
        max_memory: see `get_max_memory`, for plans.
        offload_folder: for what goes to the disk.
        offload_state_dict: see `load_checkpoint_in_model`.

    Returns:
        The model, which is another one only if it is itself a linear layer.

    Raises:
        RuntimeError: the model has no weights, and no checkpoint is given.
        ValueError: the map doesn't suit the model, or what the library can do, or the checkpoint lacks weights.
        ImportError: the library is not installed.
    """
    quantizer = quantizer_for(bnb_quantization_config)
    _check_source(model, weights_location)
    check_named(model, "skip_modules", quantizer.config.skip_modules)
    check_named(model, "keep_in_fp32_modules", quantizer.config.keep_in_fp32_modules)
    layers = dict(linear_layers(model, _skipped(model, quantizer.config)))
    if not layers:
        warnings.warn(f"{type(model).__name__} has no linear layer that is to be quantized.", stacklevel=2)
    device_map = get_quantized_model_device_map(
        model, bnb_quantization_config, device_map, max_memory, no_split_module_classes
    )
    check_device_map(model, device_map)
    check_devices(device_map)
    places = _Places(model, device_map, quantizer, layers, offload_folder)
    _set_dtypes(model, quantizer, layers, weights_location)
    if weights_location is not None:
        load_checkpoint_in_model(
            model,
            weights_location,
            device_map={**device_map, **{f"{name}.weight": "cpu" for name in layers}},
            offload_folder=offload_folder,
            offload_state_dict=offload_state_dict,
        )
    model = quantizer.finish(places.quantize_all(model, layers))
    return dispatch_model(model, device_map, offload_dir=offload_folder, state_dict=places.on_host)


def get_quantized_model_device_map(
    model: torch.nn.Module,
    bnb_quantization_config: Any,
    device_map: str | Mapping[str, Any] | None = None,
    max_memory: Mapping[int | str, int | str] | None = None,
    no_split_module_classes: str | Iterable[str] | None = None,
) -> Mapping[str, Any]:
    """Return where the parts of a model go, by the sizes that they have when it is quantized.

    Args:
        model: the model, before it is quantized.
        bnb_quantization_config: how it will be.
        device_map: the name of a plan, or a map, which is returned; by default everything is on one device.
        max_memory: see `get_max_memory`; plans only.
        no_split_module_classes: names of classes that are not to be split; plans only.
    """
    if not isinstance(device_map, str):
        _warn_without_plan(max_memory, no_split_module_classes)
        return {"": default_device().torch_device} if device_map is None else device_map
    quantizer = quantizer_for(bnb_quantization_config)
    layers = dict(linear_layers(model, _skipped(model, quantizer.config)))
    dtypes: dict[str, Any] = {name: _dtype_of(name, quantizer.config) for name in _floats(model)}
    dtypes |= {f"{name}.weight": quantizer.stored_as for name in layers}
    special = {name: dtype for name, dtype in dtypes.items() if dtype is not None}
    return planned(model, device_map, max_memory, no_split_module_classes, special_dtypes=special)


def _warn_without_plan(max_memory: Any, no_split: Any) -> None:
    given = [name for name, value in (("max_memory", max_memory), ("no_split_module_classes", no_split)) if value]
    if given:
        warnings.warn(
            f"{' and '.join(given)} without the name of a plan as device_map, such as 'auto': no effect.", stacklevel=4
        )


class _Places:
    """Where the layers of one model go, and what of them is kept elsewhere.

    Args:
        model: the model.
        device_map: where its parts go.
        quantizer: what quantizes them.
        layers: the layers that are quantized.
        folder: for those on the disk.

    Raises:
        ValueError: a layer would be kept elsewhere, and can't be.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        device_map: Mapping[str, Any],
        quantizer: Quantizer,
        layers: Mapping[str, torch.nn.Linear],
        folder: str | os.PathLike[str] | None,
    ) -> None:
        plan = PlacementPlan(model, device_map, None, False)
        self.quantizer = quantizer
        self.main = as_device(plan.main)
        self.folder = folder
        self.device = {name: placed_by(device_map, f"{name}.weight") for name in layers}
        self.kept = [name for name, device in self.device.items() if device in plan.kept]
        self.on_host: dict[str, torch.Tensor] = {}
        if self.kept and not quantizer.offloads:
            raise ValueError(_not_offloaded(self.kept, quantizer))
        if folder is None and "disk" in device_map.values():
            raise ValueError(_no_folder())

    def quantize_all(self, model: torch.nn.Module, layers: dict[str, torch.nn.Linear]) -> torch.nn.Module:
        """Quantize the layers, one after the other, and return the model.

        Raises:
            ValueError: layers have no weight.
        """
        empty = [name for name, layer in layers.items() if layer.weight.is_meta]
        if empty:
            raise ValueError(_no_weights(empty))
        index: Index = {}
        while layers:
            name = next(iter(layers))
            model = replace(model, name, self._quantized(name, layers.pop(name), index))
        if self.folder is not None:
            save_offload_index(index, self.folder)
        return model

    def _quantized(self, name: str, linear: torch.nn.Linear, index: Index) -> torch.nn.Module:
        """Return a layer quantized; if it is kept elsewhere, with its weight there."""
        if name not in self.kept:
            return self.quantizer.quantize(linear, as_device(self.device[name]))
        layer: Any = self.quantizer.offload(self.quantizer.quantize(linear, self.main))
        if self.device[name] == "disk" and self.folder is not None:
            offload_weight(layer.weight.data, f"{name}.weight", self.folder, index)
            layer.weight = meta_like(layer.weight)
        else:
            self.on_host[f"{name}.weight"] = layer.weight.data
        return layer


def _check_source(model: torch.nn.Module, weights: str | os.PathLike[str] | None) -> None:
    """Refuse a model without weights, and warn about one that had to have room for all of them.

    Raises:
        RuntimeError: there are none.
    """
    on_meta = any(parameter.is_meta for parameter in model.parameters())
    if on_meta and weights is None:
        raise RuntimeError(
            message(
                given=f"a {type(model).__name__} on meta, without `weights_location`",
                why="it has no weights that could be quantized",
                allowed="a model with its weights, or the checkpoint that they are in",
                do="pass `weights_location=`, a file or a folder",
            )
        )
    if not on_meta:
        logger.warning(
            f"{type(model).__name__} has its weights in memory already, in full. Built under `init_empty_weights()`, "
            "and with `weights_location`, it never takes more than what is quantized, and one layer."
        )


def _skipped(model: torch.nn.Module, config: Any) -> Sequence[str]:
    """Return the names of modules that are not quantized."""
    skipped = get_keys_to_not_convert(model) if config.skip_modules is None else config.skip_modules
    return [*skipped, *config.keep_in_fp32_modules]


def _dtype_of(name: str, config: Any) -> torch.dtype | None:
    """Return the dtype of a tensor of floats that is not quantized; None for the one that it has."""
    kept: torch.dtype = torch.float32
    return kept if is_named(name, config.keep_in_fp32_modules) else config.torch_dtype


def _floats(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Return the parameters of a model, and the buffers of its state dict, that are floats."""
    kept = {
        f"{path}.{name}" if path else name
        for path, module in model.named_modules(remove_duplicate=False)
        for name in (*module._parameters, *(each for each in module._buffers if each in _persistent(module)))
    }
    found = {name: store[key] for name, (store, key, _) in all_places(model)}
    return {name: tensor for name, tensor in found.items() if name in kept and tensor.is_floating_point()}


def _persistent(module: torch.nn.Module) -> set[str]:
    return module._buffers.keys() - module._non_persistent_buffers_set


def _set_dtypes(
    model: torch.nn.Module,
    quantizer: Quantizer,
    layers: Mapping[str, torch.nn.Linear],
    weights: str | os.PathLike[str] | None,
) -> None:
    """Give the tensors of a model the dtypes that they will have; those to be quantized the one they have in files."""
    stored: dict[str, torch.dtype] = {}
    if weights is not None:
        stored = {name: file.dtype(name) for file in open_all(weights) for name in file.names()}
    quantized = {f"{name}.weight" for name in layers}
    for name, tensor in _floats(model).items():
        dtype = stored.get(name) if name in quantized else _dtype_of(name, quantizer.config)
        if dtype is not None and dtype != tensor.dtype:
            tensor.data = tensor.data.to(dtype)


def _not_offloaded(names: Sequence[str], quantizer: Quantizer) -> str:
    return message(
        given=f"a device_map that keeps {', '.join(names)} on the CPU or the disk, to be brought in",
        why=f"layers that are quantized as {type(quantizer.config).__name__} says can't be brought in for each forward",
        allowed="a device on which they run for every layer that is quantized",
        do="give the devices more memory, or name these layers in `skip_modules`",
    )


def _no_folder() -> str:
    return message(
        given="a device_map with 'disk' and no offload_folder",
        why="what goes to the disk needs a place",
        allowed="a folder that can be written to",
        do="pass `offload_folder=`",
    )


def _no_weights(names: Sequence[str]) -> str:
    return message(
        given=f"a checkpoint without weights of {', '.join(names)}",
        why="these layers are to be quantized, and have nothing to quantize",
        allowed="a checkpoint with the weights of the model",
        do="load the checkpoint of this architecture, or name these layers in `skip_modules`",
    )
