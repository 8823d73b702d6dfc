"""A model by itself, for others to load: one safetensors file, or shards with an index, as on the Hugging Face Hub."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

import torch

from accelerate.base.constants import (
    SAFE_WEIGHTS_INDEX_NAME,
    SAFE_WEIGHTS_PATTERN_NAME,
    WEIGHTS_INDEX_NAME,
    WEIGHTS_PATTERN_NAME,
)
from accelerate.base.messages import message
from accelerate.checkpointing.durable import Sink, flush_folder, remove_folder
from accelerate.checkpointing.folder import clear_leftovers, unfinished
from accelerate.checkpointing.objects import groups_of_names, without_shared_tensors, write_object
from accelerate.checkpointing.tensors import refuse_other_values, spec_of, write_stream
from accelerate.logging import get_logger

logger = get_logger(__name__)


#: What brings in the values of a tensor that is elsewhere, by name.
Offloaded: TypeAlias = Mapping[str, Callable[[], torch.Tensor]]


def check_saveable(state: Mapping[str, Any], offloaded: Offloaded) -> None:
    """Refuse a model whose values are not there.

    Args:
        state: tensors by name.
        offloaded: those whose values are known to be elsewhere.

    Raises:
        RuntimeError: others are on the meta device.
    """
    absent = [name for name, value in state.items() if getattr(value, "is_meta", False) and name not in offloaded]
    if absent:
        raise RuntimeError(
            message(
                given=f"a model with {len(absent)} tensors on the meta device, the first of them {absent[0]}",
                why="tensors on the meta device have no values, so there is nothing to save",
                allowed="models whose weights are loaded, or were offloaded when the model was dispatched",
                do="load the weights first, with load_checkpoint_in_model for instance",
            )
        )


def write_model(
    state: Mapping[str, Any], folder: Path, *, max_shard_size: int | str, safe: bool, offloaded: Offloaded | None = None
) -> None:
    """Write a model's state into `folder`, in place of an earlier one of the same format.

    All files are complete and on the disk before the first of them gets its name. An index goes last, and an earlier
    one first, so that no index ever lists files of two models.

    Args:
        state: tensors by name.
        folder: made if it isn't there.
        max_shard_size: bytes, or text such as "10GB"; a greater tensor is in a shard of its own.
        safe: write safetensors; otherwise with `torch.save`.
        offloaded: brings in what has its values elsewhere: one tensor at a time for safetensors, else one file.
    """
    from huggingface_hub import split_torch_state_dict_into_shards  # only who saves a model pays for it

    if safe:
        refuse_other_values(state)
        _tell_shared(state)
        state = without_shared_tensors(dict(state))
    pattern, index_name = (
        (SAFE_WEIGHTS_PATTERN_NAME, SAFE_WEIGHTS_INDEX_NAME) if safe else (WEIGHTS_PATTERN_NAME, WEIGHTS_INDEX_NAME)
    )
    split = split_torch_state_dict_into_shards(dict(state), filename_pattern=pattern, max_shard_size=max_shard_size)
    folder.mkdir(parents=True, exist_ok=True)
    staged = unfinished(folder / "model")
    clear_leftovers(folder / "model")
    staged.mkdir()
    try:
        for name, keys in split.filename_to_tensors.items():
            _write(staged / name, {key: state[key] for key in keys}, safe, offloaded or {})
        if split.is_sharded:
            _write_index(staged / index_name, split.metadata, split.tensor_to_filename)
        _exchange(staged, folder, pattern, index_name)
    finally:
        remove_folder(staged)


def _write(path: Path, tensors: dict[str, Any], safe: bool, offloaded: Offloaded) -> None:
    def fetch(name: str) -> Any:
        value = tensors[name]
        return offloaded[name]().to(value.dtype) if getattr(value, "is_meta", False) else value

    sink = Sink(path)
    try:
        if safe:
            write_stream(sink, {name: spec_of(tensor) for name, tensor in tensors.items()}, fetch)
        else:
            write_object(sink, {name: fetch(name) for name in tensors})
        sink.finish()
    finally:
        sink.close()


def _write_index(path: Path, metadata: Mapping[str, Any], weight_map: Mapping[str, str]) -> None:
    sink = Sink(path)
    try:
        index = {"metadata": dict(metadata), "weight_map": dict(weight_map)}
        sink.write(f"{json.dumps(index, indent=2, sort_keys=True)}\n".encode())
        sink.finish()
    finally:
        sink.close()


def _exchange(staged: Path, folder: Path, pattern: str, index_name: str) -> None:
    """Move complete files into `folder`, and remove those of the model that was there."""
    (folder / index_name).unlink(missing_ok=True)
    names = sorted(path.name for path in staged.iterdir())
    for name in sorted(names, key=lambda name: name == index_name):
        os.replace(staged / name, folder / name)
    family = re.compile(re.escape(pattern).replace(re.escape("{suffix}"), r"(-\d{5}-of-\d{5})?"))
    for path in list(folder.iterdir()):
        if family.fullmatch(path.name) and path.name not in names:
            path.unlink()
    flush_folder(folder)


def _tell_shared(state: Mapping[str, Any]) -> None:
    dropped = sorted(name for names in groups_of_names(dict(state)) for name in names[1:])
    if dropped:
        logger.warning(
            f"Not written, because they are one tensor with another that is: {', '.join(dropped)}. Models that tie "
            "these weights find them again when they load."
        )
