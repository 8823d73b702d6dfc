"""Models with their linear layers in few bits, as scripts import it."""

from __future__ import annotations

import logging

from accelerate.big_modeling.quantization import get_quantized_model_device_map, load_and_quantize_model
from accelerate.big_modeling.quantization_bnb import (
    _replace_with_bnb_layers,
    get_parameter_device,
    has_4bit_bnb_layers,
    quantize_and_offload_8bit,
    replace_with_bnb_layers,
)
from accelerate.big_modeling.quantization_layers import get_keys_to_not_convert

__all__ = [
    "_replace_with_bnb_layers",
    "get_keys_to_not_convert",
    "get_parameter_device",
    "get_quantized_model_device_map",
    "has_4bit_bnb_layers",
    "load_and_quantize_model",
    "logger",
    "quantize_and_offload_8bit",
    "replace_with_bnb_layers",
]

#: What is logged about quantization comes from this logger.
logger = logging.getLogger(__name__)
