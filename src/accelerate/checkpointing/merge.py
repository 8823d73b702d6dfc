"""From the shards of a distributed checkpoint to one file of weights, a few tensors at a time.

The file is written in the order of its layout while tensors are fetched from the shards, so memory holds one batch of
small tensors or one great one, whatever the size of the model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata

from accelerate.base.constants import SAFE_WEIGHTS_NAME, WEIGHTS_NAME
from accelerate.base.messages import message
from accelerate.checkpointing.durable import Sink, rename
from accelerate.checkpointing.folder import unfinished
from accelerate.checkpointing.metadata import SafePlanner, SafeReader, is_sharded_folder, paths_in, plain_errors
from accelerate.checkpointing.objects import write_object
from accelerate.checkpointing.tensors import Spec, file_order, write_stream

MODEL_KEY = "model"
BATCH = 16 * 2**20  #: bytes of small tensors that are fetched together


def check_mergeable(folder: Path) -> None:
    """Refuse a folder that has no shards.

    Raises:
        ValueError: it hasn't; one inside of it may have.
    """
    if is_sharded_folder(folder):
        return
    inner = [path.name for path in sorted(folder.iterdir()) if is_sharded_folder(path)] if folder.is_dir() else []
    raise ValueError(
        message(
            given=f"the folder {folder}",
            why="it has no .metadata file" if folder.is_dir() else "there is no such folder",
            allowed="a folder that torch.distributed.checkpoint wrote, such as checkpoint/pytorch_model_fsdp_0",
            do=f"name {' or '.join(str(folder / name) for name in inner)}"
            if inner
            else "save with SHARDED_STATE_DICT, and name the folder of the model inside the checkpoint",
        )
    )


def merge(folder: Path, output: Path, *, safe: bool = True) -> Path:
    """Write the weights in the DCP folder `folder` into one file in the folder `output`, and return its path.

    Args:
        output: made if it isn't there; the folder above it has to exist.
        safe: write safetensors; otherwise with `torch.save`, which needs the whole model in memory.

    Raises:
        ValueError: the folder has no shards, or no tensors.
    """
    check_mergeable(folder)
    reader = SafeReader(folder)
    tensors = tensors_of_model(reader.read_metadata())
    if not tensors:
        raise ValueError(
            message(
                given=f"the folder {folder}",
                why="there are no tensors in it",
                allowed="the folder of a model",
                do="name the folder of the model inside the checkpoint, such as pytorch_model_fsdp_0",
            )
        )
    output.mkdir(exist_ok=True)
    path = output / (SAFE_WEIGHTS_NAME if safe else WEIGHTS_NAME)
    staged = unfinished(path)
    sink = Sink(staged)
    try:
        specs = {name: spec for name, (_, spec) in tensors.items()}
        fetch = fetcher(reader, tensors, file_order(specs))
        if safe:
            write_stream(sink, specs, fetch)
        else:
            write_object(sink, {name: fetch(name) for name in file_order(specs)})
        sink.finish()
        rename(staged, path)
    finally:
        sink.close()
        staged.unlink(missing_ok=True)
    return path


def tensors_of_model(metadata: Metadata) -> dict[str, tuple[str, Spec]]:
    """Return the tensors of the model in a DCP folder: by name, the key each is stored under and what it is.

    They are below the key "model"; where there is no such key, everything is.
    """
    paths, described = paths_in(metadata), metadata.state_dict_metadata
    nested = any(path[0] == MODEL_KEY and len(path) > 1 for path in paths.values())
    found = {}
    for key, path in paths.items():
        entry, chosen = described[key], path[0] == MODEL_KEY or not nested
        if chosen and isinstance(entry, TensorStorageMetadata):
            name = ".".join(map(str, path[1:] if nested else path))
            found[name] = key, Spec(entry.properties.dtype, tuple(entry.size))
    return found


def fetcher(
    reader: SafeReader, tensors: dict[str, tuple[str, Spec]], order: Sequence[str]
) -> Callable[[str], torch.Tensor]:
    """Return a function that returns the tensor of a name, for names asked for in a known order.

    Args:
        reader: reads the folder.
        tensors: for each name, the key it is stored under and what it is.
        order: the order.
    """
    batches = batched(order, {name: spec.nbytes for name, (_, spec) in tensors.items()})
    ahead: dict[str, torch.Tensor] = {}

    def fetch(name: str) -> torch.Tensor:
        if name not in ahead:
            ahead.clear()
            for each in next(batches):
                _, spec = tensors[each]
                ahead[each] = torch.empty(spec.shape, dtype=spec.dtype)
            state = {tensors[each][0]: tensor for each, tensor in ahead.items()}
            with plain_errors():
                dcp.load(state, storage_reader=reader, planner=SafePlanner(), no_dist=True)
        return ahead.pop(name)

    return fetch


def batched(order: Sequence[str], sizes: dict[str, int]) -> Iterator[list[str]]:
    """Yield names in order, as many at a time as have `BATCH` bytes together, one at least."""
    batch: list[str] = []
    total = 0
    for name in order:
        if batch and total + sizes[name] > BATCH:
            yield batch
            batch, total = [], 0
        batch.append(name)
        total += sizes[name]
    if batch:
        yield batch
