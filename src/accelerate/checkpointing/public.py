"""Saving and loading without an `Accelerator`: the functions of `accelerate.checkpointing`.

They write into a folder that exists, each file in one step, and leave out what makes a folder a whole: no manifest, no
rename. `Accelerator.save_state` is the better choice.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from accelerate.base.messages import message
from accelerate.checkpointing.durable import Sink, remove_folder, rename
from accelerate.checkpointing.folder import unfinished
from accelerate.checkpointing.layout import LOADERS, SCALER, custom_name
from accelerate.checkpointing.model_records import model_records
from accelerate.checkpointing.objects import load_object, save_object
from accelerate.checkpointing.position import LoadersRecord, RandomRecord
from accelerate.checkpointing.records import Record, ScalerRecord, optimizer_records, scheduler_records
from accelerate.checkpointing.source import Source
from accelerate.logging import get_logger
from accelerate.state import GradientState, PartialState

logger = get_logger("accelerate.checkpointing")

MAP_LOCATIONS = (None, "cpu", "on_device")


class OnlyStep:
    """A step count without accumulation windows."""

    def __init__(self, step: int = 0) -> None:
        self.step = step

    def state(self) -> list[dict[str, Any]]:
        """Return no windows."""
        return []

    def load_state(self, windows: list[dict[str, Any]]) -> None:
        """Leave windows alone."""

    def open_models(self) -> list[torch.nn.Module]:
        """Return no models."""
        return []

    def restart(self, ratio: float) -> None:
        """Count as many samples as the processes before did."""
        self.step = int(self.step * ratio)


def save_accelerator_state(
    output_dir: str | Path,
    model_states: Sequence[dict[str, Any]],
    optimizers: Sequence[Any],
    schedulers: Sequence[Any],
    dataloaders: Sequence[Any],
    process_index: int,
    step: int,
    scaler: Any = None,
    save_on_each_node: bool = False,
    safe_serialization: bool = True,
) -> Path:
    """Write states into `output_dir`: shared ones on the main process, random states on every process.

    Returns:
        the folder.
    """
    state, folder = PartialState(), Path(output_dir)
    records: list[Record] = []
    if state.is_local_main_process if save_on_each_node else state.is_main_process:
        records = _records(optimizers, schedulers, dataloaders, scaler)
        records += model_records(model_states, [], safe_serialization)
    for record in (*records, _random_record(process_index, OnlyStep(step))):
        write_record(folder, record)
    return folder


def load_accelerator_state(
    input_dir: str | Path,
    models: Sequence[torch.nn.Module],
    optimizers: Sequence[Any],
    schedulers: Sequence[Any],
    dataloaders: Sequence[Any],
    process_index: int,
    scaler: Any = None,
    map_location: str | None = None,
    load_kwargs: dict[str, Any] | None = None,
    **load_model_func_kwargs: Any,
) -> dict[str, Any]:
    """Restore what `save_accelerator_state` wrote.

    Args:
        map_location: None, "cpu" or "on_device"; values end up where the objects are, whichever it is.
        load_kwargs: arguments of `torch.load`.
        load_model_func_kwargs: arguments of `load_state_dict` of models.

    Returns:
        what is to be set on the `Accelerator`: its `step`.

    Raises:
        TypeError: an unknown `map_location`.
        RuntimeError: something is missing or doesn't fit.
    """
    check_map_location(map_location)
    source = Source(Path(input_dir), None, load_kwargs, load_model_func_kwargs)
    loads: list[Callable[..., Any]] = [model.load_state_dict for model in models]
    steps = OnlyStep()
    records = [*model_records([model.state_dict() for model in models], loads, True, models)]
    records += _records(optimizers, schedulers, dataloaders if source.has(LOADERS) else (), scaler)
    records.append(_random_record(process_index, steps))
    problems = [problem for record in records for problem in record.check(source)]
    if problems:
        raise RuntimeError(
            message(
                given=f"the checkpoint {input_dir}",
                why="it doesn't fit what it is loaded into, and nothing was changed:\n" + "\n".join(problems),
                allowed="the objects that it was saved from",
                do="pass the same models, optimizers and schedulers as when it was saved",
            )
        )
    for record in records:
        record.restore(source)
    return {"step": steps.step}


def save_custom_state(obj: Any, path: str | Path, index: int = 0, save_on_each_node: bool = False) -> None:
    """Write `obj.state_dict()` to `custom_checkpoint_<index>.pkl` in the folder `path`, on the main process."""
    state, own = PartialState(), obj.state_dict()
    if state.is_local_main_process if save_on_each_node else state.is_main_process:
        save_object(own, Path(path) / custom_name(index))


def load_custom_state(obj: Any, path: str | Path, index: int = 0) -> None:
    """Restore what `save_custom_state` wrote; nothing that the file contains is executed."""
    obj.load_state_dict(load_object(Path(path) / custom_name(index), map_location="cpu"))


def merge_fsdp_weights(
    checkpoint_dir: str | Path,
    output_path: str | Path,
    safe_serialization: bool = True,
    remove_checkpoint_dir: bool = False,
) -> None:
    """Write the model in a folder of shards, as FSDP saves it with SHARDED_STATE_DICT, into one file of weights.

    The main process does it, and needs memory for the greatest tensor (for the whole model without safetensors).

    Args:
        checkpoint_dir: the folder of shards, such as `checkpoint_0/pytorch_model_fsdp_0`.
        output_path: the folder that gets `model.safetensors` or `pytorch_model.bin`.
        safe_serialization: write safetensors; otherwise with `torch.save`.
        remove_checkpoint_dir: remove the folder of shards once the file is on the disk.

    Raises:
        ValueError: there are no shards in the folder.
    """
    from accelerate.checkpointing.merge import check_mergeable, merge  # only who merges shards pays for it

    state, folder = PartialState(), Path(checkpoint_dir)
    check_mergeable(folder)
    if state.is_main_process:
        path = merge(folder, Path(output_path), safe=safe_serialization)
        logger.info(f"Merged the shards of {folder} into {path}")
        if remove_checkpoint_dir:
            remove_folder(folder)
    state.wait_for_everyone()


def check_map_location(map_location: Any) -> None:
    """Refuse what `map_location` can't be.

    Raises:
        TypeError: it is something else.
    """
    if map_location not in MAP_LOCATIONS:
        raise TypeError(
            message(
                given=f"map_location={map_location!r}",
                why="values are put where the objects are that they belong to",
                allowed="None, 'cpu' or 'on_device'",
                do="leave it out",
            )
        )


def write_record(folder: Path, record: Record) -> None:
    """Write one file of a checkpoint in one step."""
    staged = unfinished(folder / record.name)
    sink = Sink(staged)
    try:
        record.write(sink, record.state())
        sink.finish()
        rename(staged, folder / record.name)
    finally:
        sink.close()
        staged.unlink(missing_ok=True)


def _records(
    optimizers: Sequence[Any], schedulers: Sequence[Any], dataloaders: Sequence[Any], scaler: Any
) -> list[Record]:
    loaders = [loader for loader in dataloaders if hasattr(loader, "progress")]
    return [
        *optimizer_records(optimizers, []),
        *scheduler_records(schedulers),
        *([] if scaler is None else [ScalerRecord(SCALER, scaler)]),
        *([LoadersRecord(loaders, GradientState())] if loaders else []),
    ]


def _random_record(process_index: int, steps: OnlyStep) -> RandomRecord:
    state = PartialState()
    topology = replace(state._topology, rank=process_index)
    return RandomRecord(topology, state._device_handle, steps)
