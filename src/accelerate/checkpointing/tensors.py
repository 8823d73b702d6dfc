"""Safetensors files, written and read tensor by tensor.

The library's own `save_file` needs all tensors in host memory at once and doesn't say what it wrote. Here they go out
one after the other, from whatever device they are on, into a sink that sums the bytes; the file is the same. Reading
is left to the library, which maps files into memory.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch

from accelerate.base.messages import message
from accelerate.checkpointing.durable import Sink
from accelerate.checkpointing.reading import Piece, can_take_bytes, read_pieces

#: How the format spells each dtype (https://github.com/huggingface/safetensors).
DTYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint64: "U64",
    torch.uint32: "U32",
    torch.uint16: "U16",
    torch.uint8: "U8",
    torch.bool: "BOOL",
    torch.complex64: "C64",
}


HEADER_LIMIT = 100_000_000  #: bytes that a header may have, as the library has it


class Spec(NamedTuple):
    """What a tensor is without its values."""

    dtype: torch.dtype
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """How many bytes its values take."""
        return torch.Size(self.shape).numel() * self.dtype.itemsize


def spec_of(tensor: torch.Tensor) -> Spec:
    """Return what `tensor` is without its values."""
    return Spec(tensor.dtype, tuple(tensor.shape))


def write_tensors(sink: Sink, tensors: Mapping[str, torch.Tensor]) -> None:
    """Write a safetensors file.

    Raises:
        ValueError: something in `tensors` can't be stored in this format.
    """
    refuse_other_values(tensors)
    write_stream(sink, {name: spec_of(tensor) for name, tensor in tensors.items()}, tensors.__getitem__)


def write_stream(sink: Sink, specs: Mapping[str, Spec], fetch: Callable[[str], torch.Tensor]) -> None:
    """Write a safetensors file whose tensors are fetched one at a time.

    Args:
        sink: the file.
        specs: what the tensors are.
        fetch: returns the tensor of a name, on any device.
    """
    order = file_order(specs)
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name in order:
        dtype, shape = specs[name]
        begin, end = end, end + specs[name].nbytes
        header[name] = {"dtype": DTYPES[dtype], "shape": list(shape), "data_offsets": [begin, end]}
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    sink.write(len(text).to_bytes(8, "little") + text)
    for name in order:
        sink.write(bytes_of(fetch(name)))


def file_order(specs: Mapping[str, Spec]) -> list[str]:
    """Return names in the order of the file: widest first, so that each begins at a multiple of its item size."""
    return sorted(specs, key=lambda name: (-specs[name].dtype.itemsize, name))


def bytes_of(tensor: torch.Tensor) -> Any:
    """Return the values of a tensor as a buffer; without a copy if they are contiguous in host memory."""
    flat = tensor.detach().to("cpu").contiguous().view(-1)
    return flat.view(torch.uint8).numpy() if flat.numel() else b""


def refuse_other_values(state: Mapping[str, Any]) -> None:
    """Refuse a state that has anything but tensors that the format knows.

    Raises:
        ValueError: it has; everything is named.
    """
    offenders = [f"{name}: {_what(value)}" for name, value in state.items() if not _is_storable(value)]
    if offenders:
        raise ValueError(
            message(
                given="a state with " + ", ".join(offenders),
                why="a safetensors file holds dense tensors of the usual dtypes, and nothing else",
                allowed="dense tensors of " + ", ".join(str(dtype).removeprefix("torch.") for dtype in DTYPES),
                do="save with safe_serialization=False, which uses torch.save",
            )
        )


def _is_storable(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.layout is torch.strided and value.dtype in DTYPES


def _what(value: Any) -> str:
    if not isinstance(value, torch.Tensor):
        return type(value).__name__
    return f"a {value.layout} tensor" if value.layout is not torch.strided else f"a tensor of {value.dtype}"


def read_specs(path: Path) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the tensors in a safetensors file, from its header alone.

    Raises:
        ValueError: it is no such file.
    """
    with open(path, "rb") as file:
        return {name: tuple(entry["shape"]) for name, entry in _entries(file)[0].items()}


def _entries(file: Any) -> tuple[dict[str, Any], int]:
    """Return what the header of a safetensors file says of each tensor, and where the values begin."""
    size = int.from_bytes(file.read(8), "little")
    header = json.loads(file.read(size)) if size <= HEADER_LIMIT else None
    if not isinstance(header, dict):
        raise ValueError(f"{file.name} doesn't begin like a safetensors file")
    return {name: entry for name, entry in header.items() if name != "__metadata__"}, 8 + size


def read_into(path: Path, targets: Mapping[str, torch.Tensor], threads: int) -> set[str]:
    """Read values of a safetensors file into the tensors that wait for them, and return the names of those it could.

    Args:
        path: the file.
        targets: tensors by name; those of another shape or dtype, or elsewhere than in host memory, are left alone.
        threads: how many of them read.
    """
    with open(path, "rb", buffering=0) as file:
        entries, start = _entries(file)
        pieces = [
            Piece(name, file, start + entries[name]["data_offsets"][0], target)
            for name, target in targets.items()
            if name in entries and can_take_bytes(target) and _is_alike(entries[name], target)
        ]
        read_pieces(pieces, threads)
    return {piece.name for piece in pieces}


def _is_alike(entry: Mapping[str, Any], tensor: torch.Tensor) -> bool:
    return (entry["dtype"], tuple(entry["shape"])) == (DTYPES.get(tensor.dtype), tuple(tensor.shape))


def map_tensors_of(path: Path) -> dict[str, torch.Tensor]:
    """Return the tensors of a safetensors file, mapped into memory: nothing is read before it is used."""
    from safetensors import safe_open  # only who reads such a file pays for it

    with safe_open(path, framework="pt") as file:
        return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  (it has no __iter__)


def local_of(tensor: Any) -> torch.Tensor:
    """Return what this rank holds of a tensor: its shard, if it is a DTensor."""
    local: torch.Tensor = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    return local


def like(local: torch.Tensor, other: Any) -> torch.Tensor:
    """Return what `local` is this rank's part of, sharded as `other` is; itself if that isn't sharded."""
    if not hasattr(other, "to_local"):
        return local
    from torch.distributed.tensor import DTensor  # loaded already, or there would be no such tensor

    facts = {"shape": other.shape, "stride": other.stride(), "run_check": False}
    return DTensor.from_local(local, other.device_mesh, other.placements, **facts)
