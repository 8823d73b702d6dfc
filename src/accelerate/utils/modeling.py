"""Models larger than a device: their tensors, sizes and device maps; and mixed precision as objects."""

from __future__ import annotations

from accelerate.hooks.aligned import align_module_device, has_offloaded_params
from accelerate.hooks.placement import set_module_tensor_to_device
from accelerate.hooks.tensors import (
    check_device_same,
    get_non_persistent_buffers,
    id_tensor_storage,
    named_module_tensors,
)
from accelerate.logging import get_logger
from accelerate.precision.public import get_grad_scaler, get_mixed_precision_context_manager

__all__ = [
    "align_module_device",
    "check_device_same",
    "get_grad_scaler",
    "get_mixed_precision_context_manager",
    "get_non_persistent_buffers",
    "has_offloaded_params",
    "id_tensor_storage",
    "logger",
    "named_module_tensors",
    "set_module_tensor_to_device",
]

logger = get_logger(__name__)
