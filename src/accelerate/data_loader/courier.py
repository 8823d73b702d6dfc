"""Sends every rank its part of what rank 0 read, in one message per step.

A message is one broadcast of bytes: a header, a description of the parts where it differs from the last step's, and
the tensors of all parts. It is as long as the last one, which all ranks know; only where a step needs more, a second
message follows. Rank 0's own part does not travel, and the buffers are used again.
"""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from typing import Any

import torch

from accelerate.base.messages import message
from accelerate.comm.collectives import Collectives
from accelerate.comm.tree import leaves, leaves_with_paths, with_leaves
from accelerate.data_loader.dealing import Tail
from accelerate.data_loader.parts import Step

ALIGNMENT = 16  # bytes of the widest dtype
HEADER = 32
FIRST_MESSAGE = 4096  # enough for the description of an ordinary batch
UNPICKLABLE = (pickle.PicklingError, TypeError, AttributeError)
A_STEP, THE_END, A_FAILURE = 0, 1, 2


class Slot:
    """The place of a tensor among the data of a message: offset in bytes, shape and dtype."""

    __slots__ = ("dtype", "offset", "shape", "stop")

    def __init__(self, offset: int, tensor: torch.Tensor) -> None:
        self.offset = offset
        self.stop = offset + tensor.numel() * tensor.element_size()
        self.shape = tensor.shape
        self.dtype = tensor.dtype

    def view(self, data: torch.Tensor) -> torch.Tensor:
        """Return the tensor that lies here in `data` (uint8)."""
        return data[self.offset : self.stop].view(self.dtype).view(self.shape)


class Layout:
    """How the parts of a step are built, and where their tensors lie.

    Args:
        parts: the parts that travel, by their number.
    """

    def __init__(self, parts: dict[int, Any]) -> None:
        self.size = 0
        self.slots: list[Slot] = []
        self.skeletons = {number: self._describe(part) for number, part in parts.items()}
        self._places: list[torch.Tensor] = []
        self._placed_in: tuple[torch.Tensor, int] | None = None

    def _describe(self, part: Any) -> Any:
        """Return a part with slots in the place of its tensors."""
        return with_leaves(part, [self._place(leaf) if travels_as_bytes(leaf) else leaf for leaf in leaves(part)])

    def _place(self, tensor: torch.Tensor) -> Slot:
        slot = Slot(self.size, tensor)
        self.slots.append(slot)
        self.size = aligned(slot.stop)
        return slot

    def places_in(self, staged: torch.Tensor, start: int) -> list[torch.Tensor]:
        """Return the tensors to fill, in a message whose data begins at byte `start`."""
        if self._placed_in is None or self._placed_in[0] is not staged or self._placed_in[1] != start:
            self._placed_in = staged, start
            self._places = [slot.view(staged[start:]) for slot in self.slots]
        return self._places


class Buffer:
    """Bytes that travel: on the device of the collectives, and staged on the host where that is another one.

    Args:
        device: the device of the collectives.
        size: room for how many bytes at first.
    """

    def __init__(self, device: torch.device, size: int) -> None:
        self.device = device
        self.reserve(size)

    def reserve(self, size: int) -> None:
        """Make room for `size` bytes; what was there is lost."""
        self.message = torch.empty(size, dtype=torch.uint8, device=self.device)
        self.staged = self.message
        if self.device.type != "cpu":
            self.staged = torch.empty(size, dtype=torch.uint8, pin_memory=self.device.type == "cuda")
        self._words = self.staged[:HEADER].view(torch.int64).numpy()
        self._beginning = self.message

    @property
    def size(self) -> int:
        """How many bytes there is room for."""
        return self.message.numel()

    def loaded(self, size: int) -> torch.Tensor:
        """Return the first `size` bytes as they were staged, on the device."""
        if self.staged is not self.message:
            self.message[:size].copy_(self.staged[:size])
        return self.beginning(size)

    def beginning(self, size: int) -> torch.Tensor:
        """Return the first `size` bytes, on the device; the same tensor as long as the size is the same."""
        if self._beginning.numel() != size:
            self._beginning = self.message[:size]
        return self._beginning

    def write_header(self, kind: int, described: int, size: int) -> None:
        """Write the header into what is staged."""
        words = self._words
        words[0], words[1], words[2] = kind, described, size

    def header(self) -> list[int]:
        """Return the kind of the message that has arrived, the length of its description, and its size."""
        if self.staged is self.message:
            return self._words[:3].tolist()
        return self.message[:24].view(torch.int64).tolist()


class Courier:
    """One end of the line: rank 0 calls :meth:`send`, then :meth:`close` or :meth:`fail`, the others :meth:`receive`.

    Args:
        collectives: the ranks.
        number: which part this rank gets.
        travelling: the numbers of the parts that ranks other than 0 get.
    """

    def __init__(self, collectives: Collectives, number: int, travelling: Sequence[int]) -> None:
        self.collectives = collectives
        self.number = number
        self.travelling = travelling
        self.buffer = Buffer(collectives.device, FIRST_MESSAGE)
        self.length = FIRST_MESSAGE  # of the next message, on all ranks alike
        self._signature: Any = None
        self._layout = Layout({})
        self._description: tuple[dict[int, Any], Tail | None, int] = {}, None, -1
        self._sources: list[torch.Tensor] = []  # where the tensors of this rank lie in the message `_from`
        self._from: torch.Tensor | None = None
        self._start = 0

    @torch.no_grad()
    def send(self, step: Step) -> None:
        """Send the parts of a step."""
        parts = {number: step.parts[number] for number in self.travelling}
        signature = signature_of(list(parts.values())) if step.tail is None else None
        described = b""
        if signature is None or signature != self._signature:
            self._layout = Layout(parts)
            described = pickled(self._layout.skeletons, step)
        self._signature = signature
        tensors = [leaf for part in parts.values() for leaf in leaves(part) if travels_as_bytes(leaf)]
        self._send(A_STEP, described, tensors)

    def close(self) -> None:
        """Tell the others that the data has ended."""
        self._send(THE_END, b"", [])

    def fail(self, error: Exception) -> None:
        """Tell the others that reading has failed."""
        self._send(A_FAILURE, f"{type(error).__name__}: {error}".encode(), [])

    def receive(self) -> Step | None:
        """Return this rank's part of the next step, alone in its step; None when the data has ended.

        Raises:
            RuntimeError: rank 0 failed to read it.
        """
        kind, described, start = self._receive()
        if kind == THE_END:
            return None
        if kind == A_FAILURE:
            raise RuntimeError(_failed(described.decode()))
        if described:
            self._description = pickle.loads(described)
            self._sources = []
        skeletons, tail, rows = self._description
        skeleton = skeletons[self.number]
        found = leaves(skeleton)
        slots = [leaf for leaf in found if type(leaf) is Slot]
        arrived = iter(self._unpacked(slots, start))
        new = [next(arrived) if type(leaf) is Slot else leaf for leaf in found]
        return Step([with_leaves(skeleton, new)], tail, rows)

    def _unpacked(self, slots: list[Slot], start: int) -> list[torch.Tensor]:
        """Return copies of the tensors of a message whose data begins at byte `start`."""
        message = self.buffer.message
        if self._from is not message or self._start != start or not self._sources:
            self._from, self._start = message, start
            self._sources = [slot.view(message[start:]) for slot in slots]
        copies = [torch.empty(slot.shape, dtype=slot.dtype, device=message.device) for slot in slots]
        if copies:
            torch._foreach_copy_(copies, self._sources)
        return copies

    def _send(self, kind: int, described: bytes, tensors: list[torch.Tensor]) -> None:
        start = HEADER + aligned(len(described))
        size = start + (self._layout.size if tensors else 0)
        length, self.length = self.length, max(aligned(size), HEADER)
        if size > length:
            self.buffer.write_header(kind, len(described), size)
            self.collectives.broadcast(self.buffer.loaded(length))
            length = size
        if size > self.buffer.size:
            self.buffer.reserve(aligned(size))
        self.buffer.write_header(kind, len(described), size)
        if described:
            self.buffer.staged[HEADER : HEADER + len(described)] = torch.frombuffer(
                bytearray(described), dtype=torch.uint8
            )
        if tensors:
            torch._foreach_copy_(self._layout.places_in(self.buffer.staged, start), tensors)
        self.collectives.broadcast(self.buffer.loaded(length))

    def _receive(self) -> tuple[int, bytes, int]:
        """Return the kind of the next message, its description, and where its data begins."""
        self.collectives.broadcast(self.buffer.beginning(self.length))
        kind, described, size = self.buffer.header()
        if size > self.length:
            if size > self.buffer.size:
                self.buffer.reserve(aligned(size))
            self.collectives.broadcast(self.buffer.beginning(size))
        self.length = max(aligned(size), HEADER)
        data = self.buffer.message[HEADER : HEADER + described].cpu().numpy().tobytes() if described else b""
        return kind, data, HEADER + aligned(described)


def aligned(size: int) -> int:
    """Return the next place where a tensor of any dtype may begin."""
    return -(-size // ALIGNMENT) * ALIGNMENT


def travels_as_bytes(leaf: Any) -> bool:
    """Tell whether a leaf is a plain tensor; everything else is pickled."""
    return type(leaf) is torch.Tensor and leaf.layout is torch.strided and not leaf.is_nested


def signature_of(data: Any) -> Any:
    """Return what two batches have in common when they are built alike, to be compared; None if that is not known."""
    kind = type(data)
    if kind is torch.Tensor:
        return (data.dtype, data.shape) if travels_as_bytes(data) else None
    if kind is dict:
        inside = (tuple(data), *map(signature_of, data.values()))
    elif kind is list or kind is tuple:
        inside = (kind, *map(signature_of, data))
    else:
        return None
    return None if None in inside else inside


def pickled(skeletons: dict[int, Any], step: Step) -> bytes:
    """Return the description of a step.

    Raises:
        TypeError: a leaf is neither a tensor nor anything that pickles.
    """
    try:
        return pickle.dumps((skeletons, step.tail, step.rows))
    except UNPICKLABLE as error:
        for skeleton in skeletons.values():
            for path, leaf in leaves_with_paths(skeleton):
                if not pickles(leaf):
                    raise TypeError(_not_sendable(leaf, path)) from error
        raise


def pickles(leaf: Any) -> bool:
    """Tell whether a leaf can be pickled."""
    try:
        pickle.dumps(leaf)
    except UNPICKLABLE:
        return False
    return True


def _not_sendable(leaf: Any, path: str) -> str:
    return message(
        given=f"a batch of a loader with dispatch_batches=True that has a {type(leaf).__name__} at batch{path}",
        why="rank 0 sends the batches of the others as tensors and pickled objects, and this can't be pickled",
        allowed="nested tensors and objects that pickle",
        do="turn it into tensors or plain data in the collate function, or let every process read its own share "
        "(dispatch_batches=False)",
    )


def _failed(what: str) -> str:
    return message(
        given="the next batch of a loader with dispatch_batches=True",
        why=f"rank 0 reads for all, and failed with {what}",
        allowed="data that rank 0 can read",
        do="see the traceback of rank 0",
    )
