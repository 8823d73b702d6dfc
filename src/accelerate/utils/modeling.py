"""Models larger than a device: their tensors, sizes, device maps and checkpoints; and mixed precision as objects."""

from __future__ import annotations

import logging

from accelerate.base.constants import WEIGHTS_INDEX_NAME
from accelerate.big_modeling.budget import get_balanced_memory, get_max_memory
from accelerate.big_modeling.device_map import check_device_map, clean_device_map, infer_auto_device_map
from accelerate.big_modeling.loading import load_checkpoint_in_model, load_state_dict
from accelerate.big_modeling.parts import fallback_allocate, get_module_size_with_ties
from accelerate.big_modeling.sizes import (
    calculate_maximum_sizes,
    compute_module_sizes,
    compute_module_total_buffer_size,
    get_max_layer_size,
    get_module_leaves,
)
from accelerate.big_modeling.state_dicts import get_state_dict_from_offload, get_state_dict_offloaded_model
from accelerate.big_modeling.store import load_offloaded_weights
from accelerate.big_modeling.tied import (
    check_tied_parameters_in_config,
    check_tied_parameters_on_same_device,
    find_tied_parameters,
    retie_parameters,
)
from accelerate.big_modeling.units import convert_file_size_to_int, dtype_byte_size
from accelerate.big_modeling.units import proper_dtype as _get_proper_dtype
from accelerate.hooks.aligned import align_module_device, has_offloaded_params
from accelerate.hooks.placement import set_module_tensor_to_device
from accelerate.hooks.tensors import (
    check_device_same,
    get_non_persistent_buffers,
    id_tensor_storage,
    named_module_tensors,
)
from accelerate.precision.public import get_grad_scaler, get_mixed_precision_context_manager

__all__ = [
    "WEIGHTS_INDEX_NAME",
    "_get_proper_dtype",
    "align_module_device",
    "calculate_maximum_sizes",
    "check_device_map",
    "check_device_same",
    "check_tied_parameters_in_config",
    "check_tied_parameters_on_same_device",
    "clean_device_map",
    "compute_module_sizes",
    "compute_module_total_buffer_size",
    "convert_file_size_to_int",
    "dtype_byte_size",
    "fallback_allocate",
    "find_tied_parameters",
    "get_balanced_memory",
    "get_grad_scaler",
    "get_max_layer_size",
    "get_max_memory",
    "get_mixed_precision_context_manager",
    "get_module_leaves",
    "get_module_size_with_ties",
    "get_non_persistent_buffers",
    "get_state_dict_from_offload",
    "get_state_dict_offloaded_model",
    "has_offloaded_params",
    "id_tensor_storage",
    "infer_auto_device_map",
    "load_checkpoint_in_model",
    "load_offloaded_weights",
    "load_state_dict",
    "logger",
    "named_module_tensors",
    "retie_parameters",
    "set_module_tensor_to_device",
]

#: What the library logs about large models comes from this logger, so that filters on it see all of it.
logger = logging.getLogger(__name__)
