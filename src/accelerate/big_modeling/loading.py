"""Load a checkpoint into a model, each tensor straight to where it belongs.

What is on the CPU already is read into its memory. What has none yet (on meta) is mapped from the file, or read into
new memory where it has to be converted or an accelerator is its place. What is mapped to the disk stays in its
safetensors file, and is only noted in the index of the offload folder; from other formats it is written there. No
second copy is made of anything, and the checkpoint is compared with the model before anything is touched.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from accelerate.base.messages import message, warn_once
from accelerate.big_modeling.checkpoint_file import CheckpointFile, open_checkpoint
from accelerate.big_modeling.distributed import is_distributed, load_distributed
from accelerate.big_modeling.locate import open_all
from accelerate.big_modeling.places import check_devices
from accelerate.big_modeling.quantization_bnb import quantize_and_offload_8bit
from accelerate.big_modeling.reading import Job, read_all
from accelerate.big_modeling.report import compare
from accelerate.big_modeling.store import Index, offload_weight, save_offload_index
from accelerate.big_modeling.tied import device_of_name, find_tied_parameters, retie_parameters
from accelerate.big_modeling.units import proper_dtype
from accelerate.hooks.placement import BNB_CLASSES, set_module_tensor_to_device
from accelerate.hooks.tensors import as_device, meta_like, prefixed_modules, wrapped_like


def load_state_dict(
    checkpoint_file: str | os.PathLike[str], device_map: Mapping[str, Any] | None = None
) -> dict[str, torch.Tensor]:
    """Return the tensors of one file of a checkpoint.

    Args:
        checkpoint_file: a file in the safetensors format, or one that `torch.save` wrote.
        device_map: where tensors go by name; those for the disk, and all without a map, are mapped from the file.
    """
    file = open_checkpoint(checkpoint_file)
    if device_map is None:
        return {name: file.view(name) for name in file.names()}
    check_devices(device_map)
    tensors: dict[str, torch.Tensor] = {}
    jobs: list[Job] = []
    for name in file.names():
        device = _in_memory(device_of_name(name, {"": "cpu", **device_map}))
        if device.type == "cpu":
            tensors[name] = file.view(name)
        else:
            tensors[name] = torch.empty(file.shape(name), dtype=file.dtype(name), device=device)
            jobs.append((file, name, tensors[name]))
    read_all(jobs)
    return tensors


def _in_memory(device: Any) -> torch.device:
    """Return a device of a map, the CPU for the disk."""
    return torch.device("cpu") if device == "disk" else as_device(device)


def load_checkpoint_in_model(
    model: torch.nn.Module,
    checkpoint: str | os.PathLike[str],
    device_map: Mapping[str, Any] | None = None,
    offload_folder: str | os.PathLike[str] | None = None,
    dtype: torch.dtype | str | None = None,
    offload_state_dict: bool = False,
    offload_buffers: bool = False,
    keep_in_fp32_modules: Sequence[str] | None = None,
    offload_8bit_bnb: bool = False,
    strict: bool = False,
    full_state_dict: bool = True,
    broadcast_from_rank0: bool = False,
    *,
    memory_map: bool = True,
) -> None:
    """Load a checkpoint into a model.

    Args:
        model: the model, with or without memory (on meta).
        checkpoint: a file, the index of a sharded checkpoint, or a folder with either.
        device_map: where the parts of the model go; by default they stay where they are, and on the CPU if on meta.
        offload_folder: for what goes to the disk: the index, and weights of formats other than safetensors.
        dtype: what to convert floating-point tensors to; by default what the model has.
        offload_state_dict: accepted, and always so: no weights but those of the model are held in memory.
        offload_buffers: buffers of modules on the disk stay there too.
        keep_in_fp32_modules: names of modules that stay in fp32 when `dtype` is fp16.
        offload_8bit_bnb: write weights for the disk in 8 bits, for models of 8-bit layers of bitsandbytes.
        strict: have the checkpoint hold the names of the model, no more and no less.
        full_state_dict: for a sharded model, that the checkpoint holds whole tensors.
        broadcast_from_rank0: for a distributed run, that only rank 0 reads and the others are sent.
        memory_map: leave tensors for the CPU in their files, mapped into memory, where they need no conversion. Files
            may be deleted then, but not written to, for as long as the model lives.

    Raises:
        ValueError: there is no such checkpoint, it does not fit the model, a device doesn't exist, or weights go to
            the disk without an `offload_folder`.
    """
    dtype = None if dtype is None else proper_dtype(dtype)
    if is_distributed(model, full_state_dict, broadcast_from_rank0):
        load_distributed(model, checkpoint, strict, full_state_dict, broadcast_from_rank0)
        return
    files = open_all(checkpoint)
    compare(model, files).check(type(model).__name__, os.fspath(checkpoint), strict)
    if device_map is not None:
        check_devices(device_map)
        _check_folder(device_map, offload_folder)
    if keep_in_fp32_modules and dtype != torch.float16:
        warn_once("keep_in_fp32_modules has an effect with dtype=torch.float16 only.", stacklevel=3)
    tied = find_tied_parameters(model)
    if offload_8bit_bnb and not any(type(each).__name__ == "Int8Params" for each in model.parameters()):
        warn_once("offload_8bit_bnb has an effect on models of 8-bit layers of bitsandbytes only.", stacklevel=3)
    kept = keep_in_fp32_modules or ()
    loader = _Loader(model, device_map, dtype, kept, offload_folder, offload_buffers, memory_map, offload_8bit_bnb)
    loader.take_all(files, tied)
    loader.finish()
    retie_parameters(model, tied)


def _check_folder(device_map: Mapping[str, Any], offload_folder: str | os.PathLike[str] | None) -> None:
    """Refuse to offload to the disk without a folder, and make the folder."""
    if "disk" not in device_map.values():
        return
    if offload_folder is None:
        raise ValueError(
            message(
                given="a device_map with 'disk' and no offload_folder",
                why="what goes to the disk needs a place for the index of what is where",
                allowed="a folder that can be written to",
                do="pass `offload_folder=`; weights of safetensors checkpoints are not copied there",
            )
        )
    os.makedirs(offload_folder, exist_ok=True)


class _Loader:
    """Decides for each tensor of a checkpoint how it gets to its place; `finish` then does it."""

    def __init__(
        self,
        model: torch.nn.Module,
        device_map: Mapping[str, Any] | None,
        dtype: torch.dtype | None,
        keep_in_fp32: Sequence[str],
        folder: str | os.PathLike[str] | None,
        offload_buffers: bool,
        memory_map: bool,
        offload_8bit: bool = False,
    ) -> None:
        self.model = model
        self.places = dict(all_places(model))
        self.device_map = device_map
        self.dtype = dtype
        self.keep_in_fp32 = tuple(f".{name}." for name in keep_in_fp32)
        self.folder = folder
        self.offload_buffers = offload_buffers
        self.memory_map = memory_map
        self.offload_8bit = offload_8bit
        self.index: Index = {}
        self.placeholders: dict[int, torch.Tensor] = {}
        self.jobs: list[Job] = []
        self.new: list[tuple[dict[str, Any], str, torch.Tensor]] = []
        self.special: list[tuple[str, torch.device, CheckpointFile, str]] = []

    def take_all(self, files: Sequence[CheckpointFile], tied: Sequence[Sequence[str]]) -> None:
        """Decide about everything that the model and the checkpoint have in common.

        Args:
            files: the checkpoint.
            tied: groups of names that stand for one parameter; it is found under any of them.
        """
        found = {name: file for file in files for name in file.names()}
        for name, file in found.items():
            if name in self.places:
                self._take(name, file, name)
        for group in tied:
            there = next((name for name in group if name in found), None)
            if there is None:
                continue
            for name in group:  # what is in memory is tied again afterwards
                if name not in found and "disk" in (self._device(name), self._device(there)):
                    self._take(name, found[there], there)

    def finish(self) -> None:
        """Read what is to be read, then let the model have it."""
        if self.folder is not None:  # first, since a folder that is full must not leave half a model
            save_offload_index(self.index, self.folder)
        read_all(self.jobs)
        for store, key, tensor in self.new:
            store[key] = tensor
        for name, device, file, source in self.special:
            set_module_tensor_to_device(self.model, name, device, value=file.view(source), clear_cache=False)

    def _take(self, name: str, file: CheckpointFile, source: str) -> None:
        store, key, is_buffer = self.places[name]
        old = store[key]
        device = self._device(name)
        dtype = self._final_dtype(name, file.dtype(source), old.dtype)
        if device == "disk" and (self.offload_buffers or not is_buffer):
            self._leave_on_disk(name, file, source, dtype)
            self.new.append((store, key, self._placeholder(store[key], dtype)))
            return
        self._bring(name, file, source, _in_memory(device), dtype)

    def _bring(self, name: str, file: CheckpointFile, source: str, device: torch.device, dtype: torch.dtype) -> None:
        """Decide how a tensor gets into memory."""
        store, key, _ = self.places[name]
        old = store[key]
        if type(old).__name__ in BNB_CLASSES:
            self.special.append((name, device, file, source))
            return
        if old.device == device and old.dtype == dtype:
            self.jobs.append((file, source, old))
            return
        if self.memory_map and device.type == "cpu" and file.dtype(source) == dtype:
            data = file.view(source)
        else:
            data = torch.empty(file.shape(source), dtype=dtype, device=device)
            self.jobs.append((file, source, data))
        self.new.append((store, key, wrapped_like(data, old) if isinstance(old, torch.nn.Parameter) else data))

    def _leave_on_disk(self, name: str, file: CheckpointFile, source: str, dtype: torch.dtype) -> None:
        store, key, _ = self.places[name]
        if self.offload_8bit and self.folder is not None and type(store[key]).__name__ == "Int8Params":
            value = file.view(source)
            quantize_and_offload_8bit(self.model, value, name, dtype, self.folder, self.index, None)
            return
        entry = file.offload_entry(source)
        if entry is not None:
            self.index[name] = {**entry, "dtype": str(dtype).removeprefix("torch.")}
        elif self.folder is not None:
            offload_weight(file.view(source).to(dtype), name, self.folder, self.index)

    def _placeholder(self, old: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """Return what stays in the model of a tensor on the disk: itself if that will do, one for all its names."""
        if old.is_meta and old.dtype == dtype:
            return old
        if id(old) not in self.placeholders:
            like = wrapped_like(old.data.to("meta", dtype), old) if isinstance(old, torch.nn.Parameter) else old
            self.placeholders[id(old)] = meta_like(like.to(dtype=dtype)) if like is old else like
        return self.placeholders[id(old)]

    def _device(self, name: str) -> Any:
        """Return where a tensor goes: where the map says, else where it is."""
        if self.device_map is not None:
            return device_of_name(name, self.device_map)
        store, key, _ = self.places[name]
        return torch.device("cpu") if store[key].is_meta else store[key].device

    def _final_dtype(self, name: str, stored: torch.dtype, own: torch.dtype) -> torch.dtype:
        """Return what a tensor is converted to: what is asked for if it is of floats, by default what the model has."""
        if self.dtype is None:
            return own
        if not stored.is_floating_point:
            return stored
        if self.dtype == torch.float16 and any(part in f".{name}." for part in self.keep_in_fp32):
            return torch.float32
        return self.dtype


def all_places(model: torch.nn.Module) -> Iterator[tuple[str, tuple[dict[str, Any], str, bool]]]:
    """Yield for each tensor of a model its name, the dictionary it is in, its key there, and whether it is a buffer."""
    for prefix, module in prefixed_modules(model):
        for store, is_buffer in ((module._parameters, False), (module._buffers, True)):
            yield from ((prefix + key, (store, key, is_buffer)) for key, value in store.items() if value is not None)
