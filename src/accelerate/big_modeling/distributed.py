"""Load a checkpoint into a model that several processes hold together, with the tools of torch.distributed."""

from __future__ import annotations

import os
import sys
from typing import Any

import torch

from accelerate.base.messages import message, warn_once
from accelerate.big_modeling.locate import open_all
from accelerate.big_modeling.report import compare
from accelerate.hooks.tensors import all_module_tensors


def is_distributed(model: torch.nn.Module, full_state_dict: bool, broadcast_from_rank0: bool) -> bool:
    """Return whether a model has to be loaded by all processes together.

    Raises:
        RuntimeError: `broadcast_from_rank0` is asked for, and there is no process group.
    """
    if broadcast_from_rank0:
        if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
            raise RuntimeError(
                message(
                    given="broadcast_from_rank0=True in a process without a process group",
                    why="there is no one to send weights to, or to get them from",
                    allowed="processes that `accelerate launch` or torchrun started, after `PartialState()`",
                    do="leave it out, and let each process read the checkpoint",
                )
            )
        return True
    if is_sharded(model):
        return True
    if not full_state_dict:
        warn_once("full_state_dict=False has no effect on a model that is not sharded.", stacklevel=4)
    return False


def is_sharded(model: torch.nn.Module) -> bool:
    """Return whether a parameter or buffer of a model is spread over a device mesh."""
    loaded: Any = sys.modules.get("torch.distributed.tensor")
    if loaded is None:
        return False
    return any(isinstance(tensor, loaded.DTensor) for _, tensor in all_module_tensors(model, recurse=True))


def load_distributed(
    model: torch.nn.Module,
    checkpoint: str | os.PathLike[str],
    strict: bool,
    full_state_dict: bool,
    broadcast_from_rank0: bool,
) -> None:
    """Load a checkpoint into a model; every process has to make the call.

    Args:
        model: the model, sharded or not.
        checkpoint: see `open_all`. With `broadcast_from_rank0` only rank 0 needs it.
        strict: have the checkpoint hold the names of the model, no more and no less.
        full_state_dict: whether it holds whole tensors.
        broadcast_from_rank0: whether only rank 0 reads.
    """
    from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict

    read = _read_by_first if broadcast_from_rank0 else _read
    tensors = read(model, checkpoint, strict)
    options = StateDictOptions(
        full_state_dict=full_state_dict or broadcast_from_rank0,
        broadcast_from_rank0=broadcast_from_rank0,
        strict=strict,
    )
    set_model_state_dict(model, tensors, options=options)


def _read(model: torch.nn.Module, checkpoint: str | os.PathLike[str], strict: bool) -> dict[str, Any]:
    """Return the tensors of a checkpoint that suits a model."""
    files = open_all(checkpoint)
    compare(model, files).check(type(model).__name__, os.fspath(checkpoint), strict)
    return {name: file.view(name) for file in files for name in file.names()}


def _read_by_first(model: torch.nn.Module, checkpoint: str | os.PathLike[str], strict: bool) -> dict[str, Any]:
    """Return what `_read` does on rank 0, and nothing on the others; what it refuses, all refuse.

    Raises:
        ValueError: rank 0 refuses the checkpoint.
    """
    tensors: dict[str, Any] = {}
    refusal: Exception | None = None
    if torch.distributed.get_rank() == 0:
        try:
            tensors = _read(model, checkpoint, strict)
        except (ValueError, OSError) as error:
            refusal = error
    said = [None if refusal is None else str(refusal)]
    torch.distributed.broadcast_object_list(said, src=0)
    if refusal is not None:
        raise refusal
    if said[0] is not None:
        raise ValueError(said[0])
    return tensors
