"""The arguments of one `prepare` call, sorted once.

Everything downstream speaks of `bundle.models` or `bundle.optimizers` and writes its result into the slot it took the
object from; `results` hands them back in the order they came in.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import DataLoader

from accelerate.base.messages import message
from accelerate.scheduler import AcceleratedScheduler

#: What each kind of argument is recognised by; the first that matches wins, and what none matches passes through.
KINDS: tuple[tuple[str, Callable[[Any], bool]], ...] = (
    ("data_loader", lambda value: isinstance(value, DataLoader)),
    ("model", lambda value: isinstance(value, torch.nn.Module)),
    ("optimizer", lambda value: isinstance(value, torch.optim.Optimizer)),
    ("scheduler", lambda value: isinstance(value, LRScheduler | AcceleratedScheduler)),
)


@dataclass
class Slot:
    """One argument: what it is, what it has become so far, and whether it is moved to the device (None: as usual)."""

    kind: str
    value: Any
    device_placement: bool | None = None


@dataclass(frozen=True)
class Bundle:
    """The slots of one `prepare` call, in the order of its arguments."""

    slots: tuple[Slot, ...]

    @classmethod
    def of(cls, values: Sequence[Any], device_placement: Sequence[bool | None] | None = None) -> Bundle:
        """Sort `values`; `device_placement` has one entry per value or is None.

        Raises:
            ValueError: `device_placement` has another length than `values`.
        """
        if device_placement is None:
            device_placement = [None] * len(values)
        elif len(device_placement) != len(values):
            raise ValueError(
                message(
                    given=f"device_placement with {len(device_placement)} entries for {len(values)} objects",
                    why="each object to prepare needs its own entry, in the same order",
                    allowed=f"a list of {len(values)} values, each True, False or None (as the Accelerator was told)",
                    do="make the list as long as the arguments of `prepare`, or leave it out",
                )
            )
        return cls(
            tuple(Slot(kind_of(value), value, place) for value, place in zip(values, device_placement, strict=True))
        )

    def of_kind(self, *kinds: str) -> Iterator[Slot]:
        """Yield the slots of the given kinds, in order."""
        return (slot for slot in self.slots if slot.kind in kinds)

    @property
    def models(self) -> list[Any]:
        return [slot.value for slot in self.of_kind("model")]

    @property
    def optimizers(self) -> list[Any]:
        return [slot.value for slot in self.of_kind("optimizer")]

    @property
    def schedulers(self) -> list[Any]:
        return [slot.value for slot in self.of_kind("scheduler")]

    @property
    def data_loaders(self) -> list[Any]:
        return [slot.value for slot in self.of_kind("data_loader")]

    def results(self) -> Any:
        """Return what the objects have become: a tuple in the order of the arguments, or the one object alone."""
        values = tuple(slot.value for slot in self.slots)
        return values[0] if len(values) == 1 else values


def kind_of(value: Any) -> str:
    """Return the kind of one argument of `prepare`, "other" for what passes through untouched."""
    return next((kind for kind, matches in KINDS if matches(value)), "other")


def linked_optimizers(scheduler: Any, optimizers: list[Any]) -> list[Any]:
    """Return the prepared optimizer that `scheduler` moves, or all of `optimizers` (live) when it doesn't say.

    Raises:
        ValueError: its optimizer is not among the prepared ones.
    """
    target = getattr(scheduler, "optimizer", None)
    if target is None:
        return optimizers
    linked = [each for each in optimizers if target is each or target is each.optimizer]
    if not linked:
        raise ValueError(
            message(
                given=f"a {type(scheduler).__name__} whose {type(target).__name__} is not prepared",
                why="a prepared scheduler moves when its optimizer has stepped, so it has to know the prepared one",
                allowed="schedulers prepared together with their optimizer, or after it",
                do="call prepare(model, optimizer, scheduler), or use Accelerator(step_scheduler_with_optimizer=False)",
            )
        )
    return linked


class _Prepared(int):
    """The mark of a prepared model: true, but not in a pickled copy, which has a plain forward and no wrapper."""

    def __reduce__(self) -> tuple[Any, ...]:
        return bool, (False,)

    def __deepcopy__(self, memo: dict[int, Any]) -> _Prepared:
        return self


def mark_prepared(obj: Any) -> None:
    """Note on `obj` that it went through `prepare`, so that preparing it again returns it as it is."""
    obj._is_accelerate_prepared = _Prepared(True) if isinstance(obj, torch.nn.Module) else True
