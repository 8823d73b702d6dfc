"""The wire between ranks: five collectives behind one small interface.

A :class:`Collectives` belongs to a set of ranks (the whole run, or one axis of a device mesh) and to a device. Tensors
are moved to that device, results stay there. What a backend can't carry (booleans, fp8, 16-bit integers, complex
numbers on gloo) travels as bytes or in a wider type, so every dtype arrives as it left, on every backend alike.

Subclasses carry plain contiguous tensors only: :class:`Alone` (one process), :class:`TorchCollectives`
(torch.distributed), :class:`accelerate.comm.xla.XlaCollectives` (torch_xla), and the ranks of
:class:`accelerate.comm.fake.FakeWorld`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar, Literal

import torch
import torch.distributed as dist

from accelerate.base.messages import message

Reduction = Literal["sum", "mean", "max", "min"]

FP8 = tuple(
    getattr(torch, name)
    for name in ("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu")
    if hasattr(torch, name)
)
# What every backend moves as it is; all else is gathered and broadcast as bytes.
MOVED_AS_IS = frozenset(
    {torch.float32, torch.float64, torch.float16, torch.int64, torch.int32, torch.int8, torch.uint8}
)
# What every backend reduces as it is, with any of the four operations.
REDUCED_AS_IS = frozenset({torch.float32, torch.float64, torch.float16, torch.bfloat16})
# What no backend adds up, and the type that holds its values for the time of a reduction.
REDUCED_IN = {
    torch.bool: torch.uint8,
    torch.int16: torch.int32,
    torch.uint16: torch.int32,
    torch.uint32: torch.int64,
} | dict.fromkeys(FP8, torch.float32)


class Collectives(ABC):
    """What a set of ranks can do together.

    Args:
        rank: the place of this process among them.
        world_size: how many they are.
        device: where communication happens; results are there.
        debug: compare what the ranks are about to do before each operation of `comm.operations` (see `comm.verify`).
    """

    packs_bytes: ClassVar[bool] = True  # tensors of several dtypes may share one buffer
    applies_scale: ClassVar[bool] = False  # `reduce(scale=...)` has an effect

    def __init__(self, rank: int, world_size: int, device: torch.device | str, debug: bool = False) -> None:
        device = torch.device(device)
        self.rank = rank
        self.world_size = world_size
        self.device = torch.device("cpu") if device.type == "cpu" else device  # "cpu:0" would copy what is on "cpu"
        self.debug = debug

    def all_gather(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return every rank's tensor, stacked in rank order.

        Args:
            tensor: any dtype, any shape `[*shape]`, the same on all ranks. No gradient flows through.

        Returns:
            A new tensor `[world_size, *shape]` on `self.device`.
        """
        return self.gather_flat(tensor).view(self.world_size, *tensor.shape)

    def all_gather_later(self, tensor: torch.Tensor) -> Callable[[], torch.Tensor]:
        """Begin an :meth:`all_gather`, and return the function that waits for its result.

        All ranks have to begin it at the same place among their collectives; where they wait is up to each.
        """
        gathered = self.all_gather(tensor)
        return lambda: gathered

    def gather_flat(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the elements of every rank's tensor, one rank after the other: `[world_size * n]`."""
        if tensor.requires_grad:
            tensor = tensor.detach()
        flat = tensor.to(self.device).reshape(-1).contiguous()
        if not flat.numel():
            return flat
        if self.packs_bytes and flat.dtype not in MOVED_AS_IS:
            return self._gather_flat(as_bytes(flat)).view(flat.dtype)
        return self._gather_flat(flat)

    def all_reduce(self, tensor: torch.Tensor, op: Reduction = "sum") -> torch.Tensor:
        """Combine the tensors of all ranks, element by element, in place.

        Floating and complex tensors keep their dtype, and so do integers: their mean is the nearest integer (halves
        go up), summed in 64 bits. Booleans know "sum" and "max" (any), and "min" (all).

        Args:
            tensor: the same shape and dtype on all ranks.
            op: "sum", "mean", "max" or "min".

        Returns:
            `tensor` itself.

        Raises:
            TypeError: the mean of booleans, or the order of complex numbers, was asked for.
        """
        local = tensor.detach()
        if local.dtype in REDUCED_AS_IS and local.device == self.device and local.is_contiguous():
            if local.numel():
                self._reduce(local, "sum" if op == "mean" else op)
                if op == "mean":
                    local.div_(self.world_size)
        else:
            self._reduce_converted(local, op)
        return tensor

    def _reduce_converted(self, local: torch.Tensor, op: Reduction) -> None:
        """Reduce what has to be moved, laid out or converted first, and bring the result back."""
        check_reducible(local.dtype, op)
        wire = _reducible(local, op)
        moved = wire.to(self.device).contiguous()
        if moved.numel():
            self._reduce(moved, _wire_op(local.dtype, op))
            if op == "mean":
                _divide(moved, self.world_size)
            if moved is not wire:
                wire.copy_(moved)
            if wire.dtype is not local.dtype and not local.is_complex():
                local.copy_(wire)

    def broadcast(self, tensor: torch.Tensor, source: int = 0) -> torch.Tensor:
        """Overwrite the tensor of every rank with that of rank `source` of this set, in place.

        Args:
            tensor: the same shape and dtype on all ranks; any dtype.
            source: whose values all get.

        Returns:
            `tensor` itself.
        """
        local = tensor.detach() if tensor.requires_grad else tensor
        moved = local.to(self.device).contiguous()
        if moved.numel():
            bare = self.packs_bytes and moved.dtype not in MOVED_AS_IS
            self._send(as_bytes(moved.view(-1)) if bare else moved, source)
            if moved is not local and self.rank != source:
                local.copy_(moved)
        return tensor

    @abstractmethod
    def _gather_flat(self, flat: torch.Tensor) -> torch.Tensor:
        """Return `[world_size * n]` from the contiguous `[n]` of every rank."""

    @abstractmethod
    def _reduce(self, tensor: torch.Tensor, op: Reduction) -> None:
        """Combine a contiguous tensor in place; "mean" is asked for as "sum"."""

    @abstractmethod
    def _send(self, tensor: torch.Tensor, source: int) -> None:
        """Overwrite a contiguous tensor in place with that of `source`."""

    @abstractmethod
    def all_gather_object(self, value: Any) -> list[Any]:
        """Return every rank's picklable value, in rank order."""

    @abstractmethod
    def broadcast_object(self, value: Any, source: int = 0) -> Any:
        """Return the picklable value of rank `source`."""

    @abstractmethod
    def barrier(self) -> None:
        """Return when every rank has come here."""


class Alone(Collectives):
    """One process by itself: nothing to say, nobody to say it to."""

    def __init__(self, device: torch.device | str = "cpu", debug: bool = False) -> None:
        super().__init__(0, 1, device, debug)

    def _gather_flat(self, flat: torch.Tensor) -> torch.Tensor:
        return flat.clone()

    def _reduce(self, tensor: torch.Tensor, op: Reduction) -> None:
        pass

    def _send(self, tensor: torch.Tensor, source: int) -> None:
        pass

    def all_gather_object(self, value: Any) -> list[Any]:
        """Return the value, in a list of one."""
        return [value]

    def broadcast_object(self, value: Any, source: int = 0) -> Any:
        """Return the value."""
        return value

    def barrier(self) -> None:
        """Return at once."""


class TorchCollectives(Collectives):
    """The ranks of a torch.distributed process group, on any backend.

    Args:
        device: where communication happens, one that the group's backend serves.
        group: the process group, for one axis of a mesh for instance; None is the whole run.
        debug: see :class:`Collectives`.

    Raises:
        ValueError: this process is not in the group.
    """

    def __init__(
        self, device: torch.device | str, group: dist.ProcessGroup | None = None, *, debug: bool = False
    ) -> None:
        rank = dist.get_rank(group)
        if rank < 0:
            raise ValueError(
                message(
                    given=f"a process group of ranks {dist.get_process_group_ranks(group)}",
                    why=f"this is rank {dist.get_rank()}, which is not one of them",
                    allowed="a group that this process belongs to",
                    do="build collectives on the members of the group only",
                )
            )
        super().__init__(rank, dist.get_world_size(group), device, debug)
        self.group = group
        self._sources = list(range(self.world_size)) if group is None else dist.get_process_group_ranks(group)
        named = self.device.type != "cpu" and self.device.index is not None and dist.get_backend(group) != "gloo"
        self._barrier_ids = [self.device.index] if named else None

    def _gather_flat(self, flat: torch.Tensor) -> torch.Tensor:
        gathered = flat.new_empty(self.world_size * flat.numel())
        _all_gather_single(gathered, flat, group=self.group)
        return gathered

    def all_gather_later(self, tensor: torch.Tensor) -> Callable[[], torch.Tensor]:
        """Begin an :meth:`all_gather`; other work of this process goes on meanwhile."""
        if tensor.dtype not in MOVED_AS_IS or tensor.device != self.device or not tensor.numel():
            return super().all_gather_later(tensor)
        local = tensor.detach().contiguous()
        gathered = local.new_empty(self.world_size, *tensor.shape)
        work = _all_gather_single(gathered.view(-1), local.view(-1), group=self.group, async_op=True)

        def wait() -> torch.Tensor:
            work.wait()
            return gathered

        return wait

    def _reduce(self, tensor: torch.Tensor, op: Reduction) -> None:
        dist.all_reduce(tensor, _TORCH_OPS[op], group=self.group)

    def _send(self, tensor: torch.Tensor, source: int) -> None:
        dist.broadcast(tensor, self._sources[source], group=self.group)

    def all_gather_object(self, value: Any) -> list[Any]:
        """Return every rank's picklable value, in rank order."""
        values: list[Any] = [None] * self.world_size
        dist.all_gather_object(values, value, group=self.group)
        return values

    def broadcast_object(self, value: Any, source: int = 0) -> Any:
        """Return the picklable value of rank `source`."""
        box = [value]
        dist.broadcast_object_list(box, self._sources[source], group=self.group)
        return box[0]

    def barrier(self) -> None:
        """Return when every rank has come here."""
        dist.barrier(self.group, device_ids=self._barrier_ids)


# the function has its second name since torch 2.13, where the first one warns
_all_gather_single = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_TORCH_OPS = {"sum": dist.ReduceOp.SUM, "max": dist.ReduceOp.MAX, "min": dist.ReduceOp.MIN}


def as_bytes(flat: torch.Tensor) -> torch.Tensor:
    """Return the bytes of a contiguous `[n]`."""
    if flat.numel() == 1:
        flat = flat.as_strided((1,), (1,))  # one element counts as contiguous with any stride
    return flat.view(torch.uint8)


def check_reducible(dtype: torch.dtype, op: str, what: str = "a tensor") -> None:
    """Raise TypeError where `op` has no result of the same dtype, so that every rank refuses before it communicates."""
    if dtype is torch.bool and op == "mean":
        why, do = "the mean of booleans is not a boolean", "convert it to a floating type first"
    elif dtype.is_complex and op in ("max", "min"):
        why, do = "complex numbers have no order", "reduce the absolute values"
    else:
        return
    raise TypeError(message(given=f"{what} of {dtype} to reduce with {op!r}", why=why, allowed="'sum'", do=do))


def _reducible(tensor: torch.Tensor, op: Reduction) -> torch.Tensor:
    """Return a tensor that backends can reduce: `tensor`, a view of it, or a copy in another dtype."""
    dtype = tensor.dtype
    if dtype.is_complex:
        return torch.view_as_real(tensor)
    if op == "mean" and not dtype.is_floating_point:
        return tensor.to(torch.int64)
    return tensor.to(REDUCED_IN.get(dtype, dtype))


def _wire_op(dtype: torch.dtype, op: Reduction) -> Reduction:
    """Return what the backend is asked for: a mean is a sum, and the sum of booleans (any of them) a maximum."""
    if dtype is torch.bool and op == "sum":
        return "max"
    return "sum" if op == "mean" else op


def _divide(total: torch.Tensor, count: int) -> None:
    """Divide in place; integers to the nearest."""
    if total.is_floating_point() or total.is_complex():
        total.div_(count)
    else:
        total.add_(count // 2).div_(count, rounding_mode="floor")
