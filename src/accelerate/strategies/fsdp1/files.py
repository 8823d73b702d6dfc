"""Saving and loading one model or optimizer with flat parameters by itself, as transformers' Trainer does.

The files are those of `Accelerator.save_state`, in the layout that the plugin says.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.state_dict import set_model_state_dict

from accelerate.base.messages import message
from accelerate.checkpointing.metadata import is_sharded_folder
from accelerate.checkpointing.records import Record
from accelerate.checkpointing.source import Source
from accelerate.strategies.fsdp1.records import FlatModelRecord, LocalModelRecord, WholeFlatModelRecord, load_whole
from accelerate.strategies.fsdp2.files import fill
from accelerate.strategies.unwrap import extract_model_from_parallel


def save_model(
    accelerator: Any, model: torch.nn.Module, folder: Path, index: int, *, adapters: bool, dcp: bool
) -> None:
    """Write the weights of `model` into `folder`; all ranks have to call it.

    Args:
        adapters: of a PEFT model, only the weights of its adapters.
        dcp: False writes shards into a file for each rank.
    """
    _write(accelerator, folder, _record(accelerator, model, index, adapters, dcp))


def load_model(accelerator: Any, model: torch.nn.Module, folder: Path, index: int, *, adapters: bool) -> None:
    """Load the weights of `model` from whichever layout `folder` has, or from a folder of shards itself.

    Raises:
        ValueError: there are no weights, or those of another model.
    """
    record = _record(accelerator, model, index, adapters, dcp=False)
    if is_sharded_folder(folder):
        record.names, folder = (folder.name,), folder.parent
    _restore(record, folder)


def save_optimizer(accelerator: Any, optimizer: Any, model: torch.nn.Module, folder: Path, index: int) -> None:
    """Write the state of `optimizer`, which trains `model`, into `folder`; all ranks have to call it."""
    record = accelerator._strategy.optimizer_records([optimizer], [model], first=index)[0]
    _write(accelerator, folder, record)


def load_optimizer(accelerator: Any, optimizer: Any, model: torch.nn.Module, folder: Path, index: int) -> None:
    """Load the state of `optimizer` from whichever layout `folder` has.

    Raises:
        ValueError: there is no state, or that of another optimizer.
    """
    record = accelerator._strategy.optimizer_records([optimizer], [model], first=index)[0]
    if is_sharded_folder(folder):
        record.found_as, folder = (folder.name,), folder.parent
    _restore(record, folder)


def _record(accelerator: Any, model: torch.nn.Module, index: int, adapters: bool, dcp: bool) -> Any:
    """Return the record of a model in the layout of the plugin; that of a rank's own file reads every other one too."""
    strategy, runtime = accelerator._strategy, accelerator.runtime
    root, state = strategy.wrapper_of(model), strategy.weights(model)
    weights = _adapters_of(model, state) if adapters else state
    load = partial(load_whole, root) if weights is state else partial(_load_into, root, state, weights)
    layout = strategy.plugin.state_dict_type.name
    if layout == "FULL_STATE_DICT" and dcp:
        return WholeFlatModelRecord(index, weights, load, root, runtime.topology.is_main)
    if weights is not state or (layout == "SHARDED_STATE_DICT" and dcp):
        return FlatModelRecord(index, weights, load, root, state)
    return LocalModelRecord(index, weights, load, root, runtime.topology.rank)


def _load_into(
    root: torch.nn.Module, state: dict[str, Any], weights: Mapping[str, Any], saved: Mapping[str, Any], **kwargs: Any
) -> None:
    """Put saved values of some tensors of a state, which have names of their own, into the model."""
    fill(weights, saved)
    set_model_state_dict(root, state)


def _adapters_of(model: torch.nn.Module, state: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the tensors of a state that belong to the active adapter of a PEFT model; all of them for any other."""
    bare: Any = extract_model_from_parallel(model, keep_torch_compile=False, recursive=True)  # for peft
    if not hasattr(bare, "peft_config"):
        return state
    from peft import get_peft_model_state_dict  # a model with this attribute came from there

    found: Mapping[str, Any] = get_peft_model_state_dict(bare, state_dict=state, adapter_name=bare.active_adapter)
    return found


def _write(accelerator: Any, folder: Path, record: Record) -> None:
    """Write one record into a folder that may have an earlier one."""
    collectives = accelerator.runtime.collectives
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / record.name
    if collectives.rank == 0 and path.is_dir():
        shutil.rmtree(path)
    elif path.is_file() and (record.everywhere or collectives.rank == 0):
        path.unlink(missing_ok=True)
    collectives.barrier()
    state = record.state()
    if record.everywhere or collectives.rank == 0:
        record.save(folder, state, collectives)
    collectives.barrier()


def _restore(record: Record, folder: Path) -> None:
    source = Source(folder)
    problems = record.check(source)
    if problems:
        raise ValueError(
            message(
                given=f"the folder {folder}",
                why="; ".join(problems),
                allowed="what save_fsdp_model and save_fsdp_optimizer, or save_state, have written for the same model",
                do="look at the path, and build the model as it was when it was saved",
            )
        )
    record.restore(source)
