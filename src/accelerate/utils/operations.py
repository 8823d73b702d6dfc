"""The operations on nested data and between processes, as scripts import them.

Each collective acts between all processes of the run; `Accelerator` offers the same as methods.
"""

from __future__ import annotations

from typing import Any

import torch

from accelerate.comm import operations as _operations
from accelerate.comm import structure as _structure
from accelerate.comm.structure import (
    TensorInformation,
    get_data_structure,
    get_shape,
    initialize_tensors,
    is_tensor_information,
)
from accelerate.comm.tree import (
    concatenate,
    convert_to_fp32,
    find_batch_size,
    find_device,
    honor_type,
    ignorant_find_batch_size,
    is_namedtuple,
    is_torch_tensor,
    is_torch_xpu_tensor,
    listify,
    pad_input_tensors,
    recursively_apply,
    send_to_device,
    slice_tensors,
)
from accelerate.comm.verify import DistributedOperationException
from accelerate.precision.outputs import ConvertOutputsToFp32, convert_outputs_to_fp32
from accelerate.state import PartialState

CannotPadNestedTensorWarning = _operations.CannotPadNestedTensorWarning

__all__ = [
    "CannotPadNestedTensorWarning",
    "ConvertOutputsToFp32",
    "DistributedOperationException",
    "TensorInformation",
    "broadcast",
    "broadcast_object_list",
    "concatenate",
    "convert_outputs_to_fp32",
    "convert_to_fp32",
    "copy_tensor_to_devices",
    "find_batch_size",
    "find_device",
    "gather",
    "gather_object",
    "gather_tensor_shape",
    "get_data_structure",
    "get_shape",
    "honor_type",
    "ignorant_find_batch_size",
    "initialize_tensors",
    "is_namedtuple",
    "is_tensor_information",
    "is_torch_tensor",
    "is_torch_xpu_tensor",
    "listify",
    "pad_across_processes",
    "pad_input_tensors",
    "recursively_apply",
    "reduce",
    "send_to_device",
    "slice_tensors",
]


def gather(tensor: Any) -> Any:
    """Return the tensors of all processes, concatenated along dimension 0; nested data is gathered leaf by leaf."""
    return _operations.gather(PartialState()._collectives, tensor)


def gather_object(object: Any) -> Any:
    """Return the items of the lists of all processes in one list; they may be anything that pickles."""
    return _operations.gather_object(PartialState()._collectives, object)


def broadcast(tensor: Any, from_process: int = 0) -> Any:
    """Give every process the tensors of process `from_process`."""
    return _operations.broadcast(PartialState()._collectives, tensor, from_process)


def broadcast_object_list(object_list: list[Any], from_process: int = 0) -> list[Any]:
    """Overwrite the items of `object_list` with those of process `from_process`, in place."""
    return _operations.broadcast_object_list(PartialState()._collectives, object_list, from_process)


def reduce(tensor: Any, reduction: str = "mean", scale: float = 1.0) -> Any:
    """Return the mean, sum, max or min of the tensors of all processes."""
    return _operations.reduce(PartialState()._collectives, tensor, reduction, scale)


def pad_across_processes(tensor: Any, dim: int = 0, pad_index: int = 0, pad_first: bool = False) -> Any:
    """Return `tensor` padded along `dim` to the greatest size that it has on any process."""
    return _operations.pad_across_processes(PartialState()._collectives, tensor, dim, pad_index, pad_first)


def gather_tensor_shape(tensor: torch.Tensor | None) -> tuple[torch.Tensor, int]:
    """Return the shape of the tensor that one process has and the others don't, on every process."""
    return _structure.gather_tensor_shape(PartialState()._collectives, tensor)


def copy_tensor_to_devices(tensor: torch.Tensor | None = None) -> torch.Tensor:
    """Return the tensor that one process passes, on every process; the others pass None."""
    return _structure.copy_tensor_to_devices(PartialState()._collectives, tensor)
