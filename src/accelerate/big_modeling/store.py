"""Weights in an offload folder: `<name>.dat` with the bytes of each, and `index.json` that says what they are.

The formats are those of Accelerate 1.15, both ways. An entry of the index has the `dtype` and `shape` of a `.dat` file,
or names the `safetensors_file` and the `weight_name` in it, so that weights of a checkpoint need not be written again.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping
from typing import Any

import torch

from accelerate.base.messages import message
from accelerate.big_modeling.checkpoint_file import read_header
from accelerate.big_modeling.spans import Mappings, Span, bytes_of
from accelerate.big_modeling.units import proper_dtype, readable
from accelerate.hooks.placement import set_module_tensor_to_device

Index = dict[str, dict[str, Any]]
INDEX = "index.json"


def offload_weight(
    weight: torch.Tensor, weight_name: str, offload_folder: str | os.PathLike[str], index: Index | None = None
) -> Index | None:
    """Write a weight to an offload folder, and its entry into `index`.

    Args:
        weight: the weight, on any device.
        weight_name: its name, which the file gets too.
        offload_folder: the folder.
        index: the index of the folder; it is returned.

    Raises:
        OSError: the folder is full or can't be written to.
    """
    data = weight.detach().to("cpu").contiguous()
    path = os.path.join(offload_folder, f"{weight_name}.dat")
    _write(path, memoryview(bytes_of(data)) if data.numel() else b"\0")
    if index is not None:
        index[weight_name] = {"dtype": str(data.dtype).removeprefix("torch."), "shape": list(data.shape)}
    return index


def _write(path: str, data: memoryview | bytes) -> None:
    """Write a file as a whole; leave none behind if that fails. Who has the old one mapped, or linked, keeps it."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
    try:
        with open(path, "wb", buffering=0) as file:
            done = 0
            while done < len(data):
                done += file.write(data[done:]) or 0
    except OSError as error:
        if os.path.exists(path):
            os.unlink(path)
        raise type(error)(error.errno, _not_written(path, len(data), error)) from error


def _not_written(path: str, size: int, error: OSError) -> str:
    return message(
        given=f"the offload folder {os.path.dirname(path)}",
        why=f"{os.path.basename(path)} ({readable(size)}) can't be written: {error.strerror}",
        allowed="a folder that can be written to, on a disk with room for all offloaded weights",
        do="choose another folder, free room, or load a safetensors checkpoint, whose weights are used where they are",
    )


def load_offloaded_weight(weight_file: str | os.PathLike[str], weight_info: Mapping[str, Any]) -> torch.Tensor:
    """Return a weight of an offload folder, mapped from its file.

    Args:
        weight_file: the `.dat` file.
        weight_info: its entry in the index.
    """
    return Mappings().view(_span_of(os.fspath(weight_file), weight_info))


def _span_of(path: str, entry: Mapping[str, Any]) -> Span:
    return Span(path, 0, proper_dtype(entry["dtype"]), tuple(entry["shape"]))


def save_offload_index(index: Index | None, offload_folder: str | os.PathLike[str]) -> None:
    """Write the index of an offload folder, keeping entries that are there; an empty one is not written."""
    if not index:
        return
    entries = {**existing_index(offload_folder), **index}
    lines = (f"  {json.dumps(name)}: {json.dumps(entry)}" for name, entry in entries.items())
    _write(os.path.join(offload_folder, INDEX), "\n".join(("{", ",\n".join(lines), "}\n")).encode())


def read_index(offload_folder: str | os.PathLike[str]) -> Index:
    """Return the index of an offload folder."""
    with open(os.path.join(offload_folder, INDEX), encoding="utf-8") as file:
        found: Index = json.load(file)
    return found


def existing_index(offload_folder: str | os.PathLike[str] | None) -> Index:
    """Return the index of an offload folder, an empty one if there is none yet."""
    if offload_folder is None or not os.path.isfile(os.path.join(offload_folder, INDEX)):
        return {}
    return read_index(offload_folder)


def offload_state_dict(save_dir: str | os.PathLike[str], state_dict: Mapping[str, torch.Tensor]) -> None:
    """Write the weights of a state dict, and their index, to an offload folder; those with several names once."""
    os.makedirs(save_dir, exist_ok=True)
    index: Index = {}
    written: dict[Any, str] = {}
    for name, weight in state_dict.items():
        same = (weight.data_ptr(), weight.device, weight.dtype, weight.shape, weight.stride())
        first = written.setdefault(same, name) if weight.numel() else name
        if first == name or not _linked(save_dir, first, name):
            offload_weight(weight, name, save_dir, index)
        else:
            index[name] = index[first]
    save_offload_index(index, save_dir)


def _linked(folder: str | os.PathLike[str], first: str, name: str) -> bool:
    """Let the file of one weight be that of another too; return whether the file system can do that."""
    path = os.path.join(folder, f"{name}.dat")
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
    try:
        os.link(os.path.join(folder, f"{first}.dat"), path)
    except OSError:
        return False
    return True


def load_offloaded_weights(model: torch.nn.Module, index: Index | None, offload_folder: str | os.PathLike[str]) -> None:
    """Put weights of an offload folder into a model, on the CPU.

    Args:
        model: the model.
        index: which weights; None or an empty index is none.
        offload_folder: the folder.
    """
    for name, entry in (index or {}).items():
        weight = load_offloaded_weight(os.path.join(offload_folder, f"{name}.dat"), entry)
        set_module_tensor_to_device(model, name, "cpu", value=weight, dtype=weight.dtype)


class Stored:
    """The weights of an index, found in their files when they are asked for, and mapped once.

    Args:
        folder: where the `.dat` files are; None if all entries name safetensors files.
        index: the index. Entries may be added and changed later.
    """

    def __init__(self, folder: str | None, index: Index) -> None:
        self.folder = folder
        self.index = index
        self._mappings = Mappings()
        self._headers: dict[str, dict[str, Span]] = {}

    def span(self, name: str) -> Span:
        """Return where a weight is."""
        entry = self.index[name]
        file = entry.get("safetensors_file")
        if file is None:
            return _span_of(os.path.join(self.folder or "", f"{name}.dat"), entry)
        if file not in self._headers:
            self._headers[file] = read_header(file)[0]
        return self._headers[file][entry.get("weight_name", name)]

    def dtype(self, name: str) -> torch.dtype:
        """Return what a weight is to be converted to: what its entry says, unless it is of integers."""
        stored = self.span(name).dtype
        wanted = self.index[name].get("dtype")
        return stored if wanted is None or not stored.is_floating_point else proper_dtype(wanted)

    def view(self, name: str) -> torch.Tensor:
        """Return a weight as it is in its file, mapped."""
        return self._mappings.view(self.span(name))
