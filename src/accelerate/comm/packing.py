"""Many tensors in one collective.

Tensors of one dtype are laid end to end in a run; runs of several dtypes share one buffer of bytes, widest elements
first, so that each starts where its dtype may start. Ten small tensors take one trip instead of ten. Large tensors go
by themselves: there the copies would cost more than the trip, and twice the memory. Empty ones don't travel.

The plan depends on shapes and dtypes only, which are the same on every rank, so all ranks make the same plan. Results
never share memory with each other.
"""

from __future__ import annotations

from typing import Any

import torch
from torch._utils import _flatten_dense_tensors, _unflatten_dense_tensors

from accelerate.comm.collectives import Collectives, Reduction, as_bytes

LARGE = 1 << 20  # bytes from which a tensor goes by itself
_ALIGNMENT = 16  # bytes of the widest dtype


class _Run:
    """Tensors of one dtype that lie end to end, and their places in the list they come from."""

    __slots__ = ("dtype", "places", "sizes", "tensors")

    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype = dtype
        self.places: list[int] = []
        self.tensors: list[torch.Tensor] = []
        self.sizes: list[int] = []

    @property
    def nbytes(self) -> int:
        return sum(self.sizes) * self.dtype.itemsize


def gather_one(collectives: Collectives, tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor concatenated over ranks along its first dim; one without dims becomes `[world_size]`."""
    return collectives.gather_flat(tensor).view(_gathered_shape(tensor.shape, collectives.world_size))


def gather_many(collectives: Collectives, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """Return what :func:`gather_one` does of each tensor."""
    if len(tensors) == 1:
        return [gather_one(collectives, tensors[0])]
    world_size = collectives.world_size
    results = tensors.copy()
    for runs in _plan(tensors, collectives.packs_bytes):
        if len(runs) == 1 and len(runs[0].places) == 1:
            results[runs[0].places[0]] = gather_one(collectives, runs[0].tensors[0])
            continue
        rows = collectives.gather_flat(_pack(runs, collectives.device)).view(world_size, -1)
        for run, part in zip(runs, _unpack(rows, runs), strict=True):
            pieces: Any = torch.split_with_sizes_copy(part, run.sizes, 1)  # type: ignore[func-returns-value]
            for place, tensor, piece in zip(run.places, run.tensors, pieces, strict=True):
                results[place] = piece.view(_gathered_shape(tensor.shape, world_size))
    return results


def broadcast_many(collectives: Collectives, tensors: list[torch.Tensor], source: int) -> None:
    """Overwrite each tensor in place with that of rank `source`."""
    if len(tensors) == 1:
        collectives.broadcast(tensors[0], source)
        return
    for runs in _plan(tensors, collectives.packs_bytes):
        if len(runs) == 1 and len(runs[0].places) == 1:
            collectives.broadcast(runs[0].tensors[0], source)
        elif collectives.rank == source:
            collectives.broadcast(_pack(runs, collectives.device), source)
        else:
            _receive(collectives, runs, source)


def reduce_many(collectives: Collectives, tensors: list[torch.Tensor], op: Reduction) -> list[torch.Tensor]:
    """Return new tensors, each combined over ranks; one collective for each dtype.

    A gradient flows to this rank's part of a result, as if the parts of the others were constants.
    """
    if len(tensors) == 1:
        return [_reduce_one(collectives, tensors[0], op)]
    results = tensors.copy()
    for (run,) in _plan(tensors, mix=False):
        if len(run.places) == 1:
            results[run.places[0]] = _reduce_one(collectives, run.tensors[0], op)
            continue
        flat = _reduced(collectives, _flatten(run.tensors, collectives.device), op)
        for place, view in zip(run.places, _unflatten_dense_tensors(flat, run.tensors), strict=True):
            results[place] = view.clone()
    return results


def _gathered_shape(shape: torch.Size, world_size: int) -> tuple[int, ...]:
    return (world_size * shape[0], *shape[1:]) if shape else (world_size,)


def _receive(collectives: Collectives, runs: list[_Run], source: int) -> None:
    """Overwrite the tensors with what the source has packed in the same way."""
    if len(runs) == 1:
        size, dtype = sum(runs[0].sizes), runs[0].dtype
    else:
        size, dtype = _aligned(sum(run.nbytes for run in runs)), torch.uint8
    buffer = collectives.broadcast(torch.empty(size, dtype=dtype, device=collectives.device), source)
    with torch.no_grad():
        for run, part in zip(runs, _unpack(buffer.unsqueeze(0), runs), strict=True):
            torch._foreach_copy_(run.tensors, _unflatten_dense_tensors(part[0], run.tensors))


def _reduce_one(collectives: Collectives, tensor: torch.Tensor, op: Reduction) -> torch.Tensor:
    own = tensor.to(collectives.device)
    if own is tensor:
        own = tensor.clone(memory_format=torch.contiguous_format)
    return _reduced(collectives, own, op)


def _reduced(collectives: Collectives, own: torch.Tensor, op: Reduction) -> torch.Tensor:
    """Reduce a tensor that nobody else holds, in place; the gradient of a mean is divided as the mean is."""
    if op == "mean" and own.requires_grad:
        return collectives.all_reduce(own, "sum") / collectives.world_size
    return collectives.all_reduce(own, op)


def _plan(tensors: list[torch.Tensor], mix: bool) -> list[list[_Run]]:
    """Return the buffers that travel, each as the runs that lie in it."""
    alone: list[_Run] = []
    small: dict[torch.dtype, _Run] = {}
    for place, tensor in enumerate(tensors):
        dtype, size = tensor.dtype, tensor.numel()
        if size == 0 or size * dtype.itemsize >= LARGE:
            run = _Run(dtype)
            alone.append(run)
        elif dtype in small:
            run = small[dtype]
        else:
            run = small[dtype] = _Run(dtype)
        run.places.append(place)
        run.tensors.append(tensor)
        run.sizes.append(size)
    if mix and len(small) > 1:
        widest_first = sorted(small.values(), key=lambda run: -run.dtype.itemsize)
        return [*([run] for run in alone), widest_first]
    return [[run] for run in (*alone, *small.values())]


def _flatten(tensors: list[torch.Tensor], device: torch.device) -> torch.Tensor:
    return _flatten_dense_tensors([tensor if tensor.device == device else tensor.to(device) for tensor in tensors])


def _pack(runs: list[_Run], device: torch.device) -> torch.Tensor:
    """Return one buffer `[n]` of what lies in the runs; of bytes, and aligned, where they are several."""
    with torch.no_grad():
        flats = [_flatten(run.tensors, device) for run in runs]
        if len(flats) == 1:
            return flats[0]
        total = sum(run.nbytes for run in runs)
        padding = flats[0].new_zeros(_aligned(total) - total, dtype=torch.uint8)
        return torch.cat([*(as_bytes(flat) for flat in flats), padding])


def _aligned(size: int) -> int:
    return size + -size % _ALIGNMENT


def _unpack(rows: torch.Tensor, runs: list[_Run]) -> list[torch.Tensor]:
    """Return, of packed buffers `[rows, n]`, a view `[rows, elements]` of each run in its own dtype."""
    if len(runs) == 1:
        return [rows]
    sizes = [run.nbytes for run in runs]
    *parts, _ = rows.split_with_sizes([*sizes, rows.shape[1] - sum(sizes)], 1)
    return [part.view(run.dtype) for part, run in zip(parts, runs, strict=True)]
