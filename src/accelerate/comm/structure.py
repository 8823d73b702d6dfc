"""What tensors look like, without their data: shapes and dtypes as values that can be sent ahead of the data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from accelerate.base.messages import message
from accelerate.comm.collectives import Collectives
from accelerate.comm.tree import map_tensors, recursively_apply

TENSOR_TYPE_TO_INT = {
    torch.float: 1,
    torch.double: 2,
    torch.half: 3,
    torch.bfloat16: 4,
    torch.uint8: 5,
    torch.int8: 6,
    torch.int16: 7,
    torch.int32: 8,
    torch.int64: 9,
    torch.bool: 10,
}
TENSOR_INT_TO_DTYPE = {code: dtype for dtype, code in TENSOR_TYPE_TO_INT.items()}


@dataclass
class TensorInformation:
    """The shape and the dtype of a tensor."""

    shape: torch.Size
    dtype: torch.dtype


def is_tensor_information(tensor_info: Any) -> bool:
    """Tell whether `tensor_info` stands for a tensor."""
    return isinstance(tensor_info, TensorInformation)


def get_data_structure(data: Any) -> Any:
    """Return the data with a :class:`TensorInformation` in the place of every tensor."""
    return map_tensors(lambda tensor: TensorInformation(shape=tensor.shape, dtype=tensor.dtype), data)


def get_shape(data: Any) -> Any:
    """Return the data with its shape, as a list, in the place of every tensor."""
    return map_tensors(lambda tensor: list(tensor.shape), data)


def initialize_tensors(data_structure: Any) -> Any:
    """Return uninitialised tensors of the shapes and dtypes that :func:`get_data_structure` wrote down."""
    return recursively_apply(
        lambda info: torch.empty(info.shape, dtype=info.dtype), data_structure, test_type=is_tensor_information
    )


def gather_tensor_shape(collectives: Collectives, tensor: torch.Tensor | None) -> tuple[torch.Tensor, int]:
    """Tell every rank the shape and the dtype of a tensor that only one of them has.

    Args:
        collectives: the ranks.
        tensor: the tensor on the rank that has it, None on the others.

    Returns:
        The sizes as an int32 column `[dims, 1]`, and the dtype's number in `TENSOR_TYPE_TO_INT`.

    Raises:
        ValueError: not exactly one rank has a tensor.
    """
    _, (shape, dtype) = _owner(collectives, tensor)
    sizes = torch.tensor(shape, dtype=torch.int32, device=collectives.device)
    return sizes.unsqueeze(1), TENSOR_TYPE_TO_INT[dtype]


def copy_tensor_to_devices(collectives: Collectives, tensor: torch.Tensor | None = None) -> torch.Tensor:
    """Return, on every rank, the tensor that only one of them has.

    Args:
        collectives: the ranks.
        tensor: the tensor on the rank that has it, None on the others.

    Raises:
        ValueError: not exactly one rank has a tensor.
    """
    owner, (shape, dtype) = _owner(collectives, tensor)
    if tensor is None:
        local = torch.empty(shape, dtype=dtype, device=collectives.device)
    else:
        local = tensor.detach().to(collectives.device)
    return collectives.broadcast(local, owner)


def _owner(collectives: Collectives, tensor: torch.Tensor | None) -> tuple[int, tuple[torch.Size, torch.dtype]]:
    """Return which rank has the tensor, and what it looks like."""
    looks = collectives.all_gather_object(None if tensor is None else (tensor.shape, tensor.dtype))
    owners = [rank for rank, look in enumerate(looks) if look is not None]
    if len(owners) != 1:
        raise ValueError(
            message(
                given=f"a tensor on {f'ranks {owners}' if owners else 'no rank'}",
                why="its one owner is the rank that the others receive from",
                allowed="a tensor on exactly one rank, None on the others",
                do="pass None everywhere else, or use `gather` or `reduce` for what every rank has",
            )
        )
    return owners[0], looks[owners[0]]
