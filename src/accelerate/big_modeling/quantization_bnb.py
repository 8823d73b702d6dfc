"""Linear layers in 8 or 4 bits by bitsandbytes, on the CPU as on accelerators.

A layer that is offloaded keeps its scales, and what else describes its numbers, on the placeholder of its weight: a few
numbers for each row or block. Only the packed weight itself is brought in for a forward.
"""

from __future__ import annotations

import copy
import importlib
import os
import sys
from collections.abc import Sequence
from typing import Any

import torch

from accelerate.base.packages import is_bnb_available
from accelerate.big_modeling.quantization_layers import (
    Quantizer,
    get_keys_to_not_convert,
    linear_layers,
    missing_library,
    replace,
)
from accelerate.big_modeling.store import Index, offload_weight
from accelerate.config.quantization import BnbQuantizationConfig
from accelerate.hooks.placement import find_store, set_module_tensor_to_device


class BnbQuantizer(Quantizer):
    """Stores linear layers as bitsandbytes does."""

    offloads = True

    def __init__(self, config: BnbQuantizationConfig) -> None:
        super().__init__(config)
        load_library()

    @property
    def stored_as(self) -> Any:
        """int8, or 4 bits."""
        return self.config.target_dtype

    def quantize(self, linear: torch.nn.Linear, device: torch.device) -> torch.nn.Module:
        """Return the layer of bitsandbytes, with its weight quantized on `device`."""
        layer = bnb_layer(linear, self.config)
        layer.weight.data = layer.weight.data.to(device="cpu", dtype=self.config.torch_dtype)
        layer.weight = weight = layer.weight.to(device)
        if device.type == "cpu":  # into memory that quantizing has given back, or the heap grows with every layer
            weight.data = weight.data.clone()
            if self.config.load_in_8bit:
                weight.CB = weight.data
        return layer

    def offload(self, layer: Any) -> torch.nn.Module:
        """Return the layer with its packed weight on the CPU; the scales stay on it."""
        layer.weight = weight = layer.weight.to("cpu")
        if self.config.load_in_8bit:
            weight.CB = None  # it is the weight itself
            layer.register_forward_hook(_forget_weight, always_call=True)
        else:  # repacking for the CPU changes the scales, which stay, together with the weight, which does not
            layer.support_avx512bf16_for_cpu = False
        return layer

    def finish(self, model: Any) -> torch.nn.Module:
        """Return the model, with the two flags that published code looks for."""
        model.is_loaded_in_8bit = self.config.load_in_8bit
        model.is_loaded_in_4bit = self.config.load_in_4bit
        return model


def load_library() -> Any:
    """Return bitsandbytes.

    Raises:
        ImportError: it is not installed.
    """
    if not is_bnb_available():
        raise missing_library("bitsandbytes", "bitsandbytes")
    return importlib.import_module("bitsandbytes")


def bnb_layer(linear: torch.nn.Linear, config: BnbQuantizationConfig) -> Any:
    """Return the layer of bitsandbytes for a linear one; its weight is quantized when it is moved to a device.

    Args:
        linear: the layer, whose memory is used.
        config: 8 or 4 bits, and how.
    """
    nn = load_library().nn
    shape: tuple[int, int, bool] = (linear.in_features, linear.out_features, linear.bias is not None)
    if config.load_in_8bit:
        threshold = config.llm_int8_threshold
        layer = nn.Linear8bitLt(*shape, has_fp16_weights=False, threshold=threshold, device="meta")
        layer.weight = nn.Int8Params(linear.weight.data, requires_grad=False, has_fp16_weights=False)
    else:
        packing = {"compress_statistics": config.bnb_4bit_use_double_quant, "quant_type": config.bnb_4bit_quant_type}
        layer = nn.Linear4bit(*shape, compute_dtype=config.bnb_4bit_compute_dtype, device="meta", **packing)
        layer.weight = nn.Params4bit(linear.weight.data, requires_grad=False, module=layer, **packing)
    layer.bias = linear.bias
    layer.train(linear.training)
    return layer.requires_grad_(False)


def _forget_weight(layer: Any, inputs: Any, output: Any) -> None:
    """Let go of a weight that was brought to an accelerator; a backward may still need the state that holds it."""
    held = layer.state.CB
    if held is not None and held.device.type not in ("cpu", "meta"):
        layer.state = copy.copy(layer.state)
        layer.state.CB = layer.state.SCB = None


def replace_with_bnb_layers(
    model: torch.nn.Module,
    bnb_quantization_config: BnbQuantizationConfig,
    modules_to_not_convert: Sequence[str] | None = None,
    current_key_name: Sequence[str] | None = None,
) -> torch.nn.Module:
    """Put layers of bitsandbytes in the place of the linear ones of a model; they quantize when they are moved.

    Args:
        model: the model, which is returned; on meta or with its weights.
        bnb_quantization_config: 8 or 4 bits, and how.
        modules_to_not_convert: names of modules to leave as they are; by default those of `get_keys_to_not_convert`.
        current_key_name: the path to `model`, if it is part of another one, for these names.
    """
    return _replace_with_bnb_layers(model, bnb_quantization_config, modules_to_not_convert, current_key_name)[0]


def _replace_with_bnb_layers(
    model: torch.nn.Module,
    bnb_quantization_config: BnbQuantizationConfig,
    modules_to_not_convert: Sequence[str] | None = None,
    current_key_name: Sequence[str] | None = None,
) -> tuple[torch.nn.Module, bool]:
    """Do as `replace_with_bnb_layers`; also return whether there was anything to replace."""
    if modules_to_not_convert is None:
        modules_to_not_convert = get_keys_to_not_convert(model)
    found = list(linear_layers(model, modules_to_not_convert, ".".join(current_key_name or ())))
    for name, linear in found:
        model = replace(model, name, bnb_layer(linear, bnb_quantization_config))
    return model, bool(found)


def has_4bit_bnb_layers(model: torch.nn.Module) -> bool:
    """Return whether a model has layers of bitsandbytes with 4 bits."""
    loaded = sys.modules.get("bitsandbytes")
    return loaded is not None and any(isinstance(module, loaded.nn.Linear4bit) for module in model.modules())


def get_parameter_device(parameter: torch.nn.Module) -> torch.device:
    """Return the device of the first parameter of a module."""
    return next(parameter.parameters()).device


def quantize_and_offload_8bit(
    model: torch.nn.Module,
    param: torch.Tensor,
    param_name: str,
    new_dtype: torch.dtype | None,
    offload_folder: str | os.PathLike[str],
    offload_index: Index,
    fp16_statistics: torch.Tensor | None,
) -> None:
    """Write a weight to an offload folder in 8 bits, with its scales; its place in the model is a placeholder then.

    Args:
        model: a model of which `param_name` is an 8-bit weight of bitsandbytes.
        param: the weight.
        param_name: its name.
        new_dtype: what to convert it to before it is quantized.
        offload_folder: the folder.
        offload_index: the index of the folder, which gets two entries.
        fp16_statistics: the scales, if `param` is in 8 bits already.
    """
    values, scales = param, fp16_statistics
    if scales is None:
        weight = param if new_dtype is None else param.to(new_dtype)
        quantized = load_library().nn.Int8Params(weight, requires_grad=False).to(weight.device)
        values, scales = quantized.data, quantized.SCB
    offload_weight(values, param_name, offload_folder, offload_index)
    offload_weight(scales, param_name.removesuffix("weight") + "SCB", offload_folder, offload_index)
    set_module_tensor_to_device(model, param_name, "meta")
    store, key = find_store(model, param_name)
    store[key].CB, store[key].SCB = None, scales
