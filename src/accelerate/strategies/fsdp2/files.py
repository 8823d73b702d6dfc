"""Saving and loading one sharded model or optimizer by itself, as transformers' Trainer does.

The files are those of `Accelerator.save_state`, without what makes a checkpoint a whole: no manifest, no rename.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch.distributed.tensor import DTensor, distribute_tensor

from accelerate.base.constants import FSDP_MODEL_NAME, OPTIMIZER_NAME
from accelerate.base.messages import message
from accelerate.checkpointing.layout import numbered
from accelerate.checkpointing.metadata import is_sharded_folder
from accelerate.checkpointing.objects import load_object, save_object
from accelerate.checkpointing.optimizer_states import names_by_identity, names_of_groups
from accelerate.checkpointing.source import Source
from accelerate.checkpointing.tensors import like, local_of
from accelerate.comm.tree import map_tensors
from accelerate.strategies.fsdp2.records import (
    ShardedModelRecord,
    ShardedOptimizerRecord,
    WholeModelRecord,
    WholeOptimizerRecord,
)
from accelerate.strategies.fsdp2.states import sharded_state, whole
from accelerate.strategies.unwrap import peel


def save_model(
    accelerator: Any, model: torch.nn.Module, folder: Path, index: int, *, by_shard: bool, adapters: bool, dcp: bool
) -> None:
    """Write the weights of `model` into `folder`; all ranks have to call it.

    Args:
        by_shard: each rank writes its shards; otherwise the main process writes the whole.
        adapters: of a PEFT model, only the weights of its adapters.
        dcp: shards go into a folder of torch.distributed.checkpoint; otherwise into a file for each rank, which only
            as many ranks can load.
    """
    state = state_of(model, adapters)
    if by_shard and not dcp:
        _write_own(accelerator, folder, rank_file(FSDP_MODEL_NAME, index, accelerator.process_index), state)
    elif by_shard:
        _write(accelerator, folder, ShardedModelRecord(index, state, None))
    else:
        keep = accelerator.is_main_process
        _write(accelerator, folder, WholeModelRecord(index, state, None, lambda: whole(state, keep)))


def load_model(accelerator: Any, model: torch.nn.Module, folder: Path, index: int, *, adapters: bool) -> None:
    """Load the weights of `model` from whichever layout `folder` has.

    Args:
        folder: the folder that was given to :func:`save_model`, or a folder of shards itself.

    Raises:
        ValueError: there are no weights, or those of another model.
    """
    state = state_of(model, adapters)
    record = ShardedModelRecord(index, state, lambda saved, **kwargs: fill(state, saved))
    source = Source(folder)
    own = folder / rank_file(FSDP_MODEL_NAME, index, accelerator.process_index)
    if is_sharded_folder(folder):  # named directly, as its parent's entry
        source, record.names = Source(folder.parent), (folder.name,)
    elif record.file(source) is None and own.is_file():
        fill(state, _shared_out(load_object(own, map_location="cpu"), state))
        return
    problems = record.check(source)
    if problems:
        raise ValueError(_misfit(folder, problems))
    record.restore(source)


def save_optimizer(
    accelerator: Any, optimizer: Any, model: Any, folder: Path, index: int, *, by_shard: bool, dcp: bool
) -> None:
    """Write the state of `optimizer`, whose parameters `model` names, into `folder`; all ranks have to call it."""
    names = names_of_groups(optimizer, names_by_identity([model]))
    record = ShardedOptimizerRecord(index, optimizer, names)
    if by_shard and not dcp:
        _write_own(accelerator, folder, rank_file(OPTIMIZER_NAME, index, accelerator.process_index), record.state())
    elif by_shard:
        _write(accelerator, folder, record)
    else:
        _write(accelerator, folder, WholeOptimizerRecord(index, optimizer, names, accelerator.is_main_process))


def load_optimizer(accelerator: Any, optimizer: Any, model: Any, folder: Path, index: int) -> None:
    """Load the state of `optimizer` from whichever layout `folder` has.

    Raises:
        ValueError: there is no state, or that of another optimizer.
    """
    record = ShardedOptimizerRecord(index, optimizer, names_of_groups(optimizer, names_by_identity([model])))
    source = Source(folder)
    own = folder / rank_file(OPTIMIZER_NAME, index, accelerator.process_index)
    if is_sharded_folder(folder):
        source, record.found_as = Source(folder.parent), (folder.name,)
    elif record.file(source) is None and own.is_file():
        record.take_shards(load_object(own, map_location="cpu"))
        return
    problems = record.check(source)
    if problems:
        raise ValueError(_misfit(folder, problems))
    record.restore(source)


def state_of(model: torch.nn.Module, adapters: bool = False) -> dict[str, Any]:
    """Return the state of `model` by shard; with `adapters`, of a PEFT model that of its active adapter."""
    bare = peel(model, parallel=False)[0]
    state = sharded_state(bare)
    if not adapters or not hasattr(bare, "peft_config"):
        return state
    from peft import get_peft_model_state_dict  # a model with this attribute came from there

    found: dict[str, Any] = get_peft_model_state_dict(bare, state_dict=state, adapter_name=bare.active_adapter)
    return found


@torch.no_grad()
def fill(state: Mapping[str, Any], saved: Mapping[str, Any]) -> None:
    """Put saved values, whole ones or shards, into the tensors of a state that share memory with parameters."""
    for name, value in saved.items():
        target = state.get(name)
        if isinstance(target, DTensor) and not isinstance(value, DTensor):
            value = distribute_tensor(value.to(target.to_local().device), target.device_mesh, target.placements)
        if isinstance(target, torch.Tensor):
            target.copy_(value)


def rank_file(name: str, index: int, rank: int) -> str:
    """Return the name of the file of one rank: "pytorch_model_fsdp_rank1.bin", "pytorch_model_fsdp_1_rank1.bin"."""
    return numbered(name, index, f"_rank{rank}.bin")


def _write(accelerator: Any, folder: Path, record: Any) -> None:
    """Write one record into a folder that may have an earlier one."""
    collectives = accelerator.runtime.collectives
    folder.mkdir(parents=True, exist_ok=True)
    if collectives.rank == 0:
        path = folder / record.name
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    collectives.barrier()
    state = record.state()
    if record.everywhere or collectives.rank == 0:
        record.save(folder, state, collectives)
    collectives.barrier()


def _write_own(accelerator: Any, folder: Path, name: str, state: Any) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    save_object(map_tensors(lambda tensor: local_of(tensor.detach()), state), folder / name)
    accelerator.runtime.collectives.barrier()


def _shared_out(saved: Mapping[str, Any], state: Mapping[str, Any]) -> dict[str, Any]:
    """Return the shards of one rank as parts of the tensors in `state`."""
    return {name: like(value.to(local_of(state[name]).device), state[name]) for name, value in saved.items()}


def _misfit(folder: Path, problems: list[str]) -> str:
    return message(
        given=f"the folder {folder}",
        why="; ".join(problems),
        allowed="what save_fsdp_model and save_fsdp_optimizer, or save_state, have written for the same model",
        do="look at the path, and build the model as it was when it was saved",
    )
