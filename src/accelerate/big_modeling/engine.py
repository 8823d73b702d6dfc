"""What stands between offloaded modules and their weights: it brings each part to where it runs, ahead of its turn.

There is one engine per model. Weights in memory, and weights that are mapped from files as they are, serve the CPU
directly, at no cost but that of a look-up; for those in files a thread sees to it that the system has them in memory.
Everything else, so what goes to an accelerator or has to be converted, is brought by a `Prefetcher` per device.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from accelerate.big_modeling.order import Order, Part
from accelerate.big_modeling.prefetch import Brought, Prefetcher
from accelerate.big_modeling.read_ahead import ReadAhead
from accelerate.big_modeling.settings import OffloadSettings
from accelerate.big_modeling.spans import Buffer, Span, read_into
from accelerate.big_modeling.streams import Copies, copies_to

#: Parts of fewer bytes in files are not worth a look of the thread that reads ahead.
SMALL = 256 * 2**10

#: How much of a file is looked at ahead of its turn.
AHEAD = 256 * 2**20


class Weights(Protocol):
    """What the engine needs to know of offloaded weights."""

    def on_host(self, name: str) -> torch.Tensor:
        """Return a weight on the CPU, mapped from its file if it has one."""
        ...

    def span(self, name: str) -> Span | None:
        """Return where a weight is in a file; None if it is in memory."""
        ...

    def dtype(self, name: str) -> torch.dtype:
        """Return what a weight is to be converted to."""
        ...


@dataclass(frozen=True)
class _Unit:
    """The weights of one module.

    Args:
        names: the weights.
        spans: where those in files are; empty if they need no look ahead.
        direct: the weights on the CPU, if they can be used as they are.
        nbytes: what they take once they are converted.
    """

    names: tuple[str, ...]
    spans: tuple[Span, ...]
    direct: tuple[torch.Tensor, ...] | None
    nbytes: int


class Engine:
    """Brings the weights of one model to where its modules run.

    Args:
        weights: the weights.
        settings: how far ahead, and in how much memory.
    """

    def __init__(self, weights: Weights, settings: OffloadSettings) -> None:
        self.weights = weights
        self.settings = settings
        self._units: dict[Part, _Unit] = {}
        self._order = Order()
        self._read_ahead = ReadAhead(AHEAD) if settings.is_on() else None
        self._prefetchers: dict[torch.device, Prefetcher] = {}
        self._lock = threading.Lock()

    def onload(self, names: tuple[str, ...], device: torch.device) -> Sequence[torch.Tensor]:
        """Return the weights of a module on `device`."""
        unit = self._units.get(names) or self._add(names)
        if unit.direct is None or device.type != "cpu":
            return self._prefetcher(device).get(names)
        if unit.spans and self._read_ahead is not None:
            self._look_ahead(unit)
        return unit.direct

    def release(self, names: tuple[str, ...], device: torch.device) -> None:
        """Take note that the forward of a module has ended."""
        prefetcher = self._prefetchers.get(device)
        if prefetcher is not None:
            prefetcher.done(names)

    def is_direct(self, names: tuple[str, ...]) -> bool:
        """Return whether weights serve the CPU as they are, so that keeping them costs no memory."""
        return (self._units.get(names) or self._add(names)).direct is not None

    def is_static(self, names: tuple[str, ...], device: torch.device) -> bool:
        """Return whether nothing is to be done for a module, not even to look ahead."""
        unit = self._units.get(names) or self._add(names)
        return device.type == "cpu" and unit.direct is not None and not (unit.spans and self._read_ahead)

    def _add(self, names: tuple[str, ...]) -> _Unit:
        spans = [self.weights.span(name) for name in names]
        dtypes = [self.weights.dtype(name) for name in names]
        sizes = [
            self.weights.on_host(name).numel() if span is None else span.numel
            for name, span in zip(names, spans, strict=True)
        ]
        in_files = tuple(span for span in spans if span is not None)
        is_direct = all(span is None or span.dtype == dtype for span, dtype in zip(spans, dtypes, strict=True))
        unit = _Unit(
            names=names,
            spans=in_files if sum(span.nbytes for span in in_files) >= SMALL else (),
            direct=tuple(self.weights.on_host(name) for name in names) if is_direct else None,
            nbytes=sum(size * dtype.itemsize for size, dtype in zip(sizes, dtypes, strict=True)),
        )
        with self._lock:
            self._units[names] = unit
            for prefetcher in self._prefetchers.values():
                prefetcher.room = self._room()
        return unit

    def _room(self) -> int:
        return self.settings.room(max((unit.nbytes for unit in self._units.values()), default=0))

    def _look_ahead(self, unit: _Unit) -> None:
        """Have the system read what follows, if it hasn't."""
        self._order.visit(unit.names)
        if self._read_ahead is not None and self._read_ahead.due():
            self._read_ahead.want(self._spans_following(unit))

    def _spans_following(self, unit: _Unit) -> Iterator[Span]:
        seen = {unit.names}
        for names in self._order.following():
            if names in seen:
                return
            seen.add(names)  # type: ignore[arg-type]
            yield from self._units[names].spans

    def _prefetcher(self, device: torch.device) -> Prefetcher:
        with self._lock:
            if device not in self._prefetchers:
                copies = copies_to(device)
                self._prefetchers[device] = Prefetcher(
                    bring=Bringer(self.weights, copies),
                    size_of=lambda part: self._units[part].nbytes,
                    copies=copies,
                    room=self._room(),
                    readers=self.settings.readers,
                )
            return self._prefetchers[device]


class Bringer:
    """Reads the weights of a module, and begins to copy them to a device.

    Each thread has a buffer of its own for that, page-locked if the device can make use of it, and fills it again when
    the copies out of it have ended.

    Args:
        weights: where they are read from.
        copies: how they get to the device.
    """

    def __init__(self, weights: Weights, copies: Copies) -> None:
        self.weights = weights
        self.copies = copies
        self._local = threading.local()

    @torch.no_grad()
    def __call__(self, part: Part) -> Brought:
        """Return the weights `part`, a tuple of names, on the device or on their way."""
        names: tuple[str, ...] = part  # type: ignore[assignment]
        dtypes = [self.weights.dtype(name) for name in names]
        if not self.copies.pinned:
            return self.copies.start([self.weights.on_host(name) for name in names], dtypes)
        return self._staged(names, dtypes)

    def _staged(self, names: tuple[str, ...], dtypes: Sequence[torch.dtype]) -> Brought:
        local = self._local.__dict__
        if "end" in local:
            self.copies.finish(local.pop("end"))
        if "buffer" not in local:
            local["buffer"] = Buffer(pinned=True)
        buffer: Buffer = local["buffer"]
        sources = [self.weights.span(name) or self.weights.on_host(name) for name in names]
        staged = buffer.several([(source.shape, source.dtype) for source in sources])
        for source, target in zip(sources, staged, strict=True):
            if isinstance(source, Span):
                read_into(source, target)
            else:
                target.copy_(source)
        brought = self.copies.start(staged, dtypes)
        local["end"] = brought[1]
        return brought
