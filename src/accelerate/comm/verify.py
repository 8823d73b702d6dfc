"""Debug mode: before the ranks communicate they compare what they are about to do.

One exchange of small objects tells every rank the operation, the shapes and dtypes, and the line of the script of every
other. Where they differ, all ranks raise the same error that shows them side by side, instead of waiting for each other
until a time-out, or adding up values that don't belong together.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from accelerate.base.messages import message
from accelerate.comm.collectives import Collectives
from accelerate.comm.containers import container_of
from accelerate.comm.tree import leaves_with_paths

_PACKAGE = str(Path(__file__).resolve().parents[1])


class DistributedOperationException(Exception):
    """The ranks are not about to do the same thing with the same kind of data."""


@dataclass(frozen=True)
class Call:
    """What one rank is about to do; equal on all ranks where they agree.

    Args:
        operation: the name of the operation.
        arguments: those of its arguments that must be the same everywhere.
        looks: of each leaf its path, shape, dtype and device type; or its path and type, where it is not a tensor.
        shapes: the shapes alone, nested as the data is, to be shown.
        site: file and line of the call outside of this library.
    """

    operation: str
    arguments: str
    looks: tuple[tuple[Any, ...], ...]
    shapes: str = field(compare=False)
    site: str = field(compare=False)

    @property
    def intruder(self) -> tuple[str, str] | None:
        """The path and the type of the first leaf that is no tensor."""
        return next(((look[0], look[1]) for look in self.looks if len(look) == 2), None)


def verify(collectives: Collectives, operation: str, data: Any, *, arguments: str = "", sizes: bool = True) -> None:
    """Compare this call with that of the other ranks.

    Args:
        collectives: the ranks.
        operation: what is about to be done.
        data: nested data of tensors which it is to be done with.
        arguments: arguments that must be the same on every rank.
        sizes: whether shapes must agree, not only the number of dims.

    Raises:
        TypeError: on one of the ranks a leaf is not a tensor; raised on every rank.
        DistributedOperationException: the ranks disagree; raised on every rank.
    """
    looks = tuple(_look(path, leaf, sizes) for path, leaf in leaves_with_paths(data))
    compare(collectives, Call(operation, arguments, looks, _shapes(data), call_site()))


def verify_call(collectives: Collectives, operation: str, arguments: str = "") -> None:
    """Compare this call with that of the other ranks, where the data may differ between them."""
    compare(collectives, Call(operation, arguments, (), "any", call_site()))


def compare(collectives: Collectives, call: Call) -> None:
    """Exchange the calls of all ranks and raise where they don't agree; see :func:`verify`."""
    calls: list[Call] = collectives.all_gather_object(call)
    for rank, each in enumerate(calls):
        if each.intruder:
            path, kind = each.intruder
            raise TypeError(
                message(
                    given=f"{kind} at data{path} on process {rank}, passed to `{each.operation}` at {each.site}",
                    why="only tensors can be communicated this way",
                    allowed="nested lists, tuples, dicts and dataclasses of tensors",
                    do="take it out of the data, or make it a tensor",
                )
            )
    if any(each != calls[0] for each in calls):
        raise DistributedOperationException(_disagreement(calls))


def call_site() -> str:
    """Return `file:line` of the innermost call that comes from outside of this library."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


def _disagreement(calls: Sequence[Call]) -> str:
    one_operation = len({call.operation for call in calls}) == 1
    name = calls[0].operation if one_operation else "different ones, see below"
    lines = [f"Operation: `accelerate.utils.operations.{name}`" if one_operation else f"Operation: {name}"]
    lines.append("Input shapes:")
    lines += [f"  - Process {rank}: {call.shapes}" for rank, call in enumerate(calls)]
    lines.append("Calls:")
    lines += [f"  - Process {rank}: {_describe(call)}" for rank, call in enumerate(calls)]
    why = _difference(calls) if one_operation else "the processes are in different operations"
    return message(
        given="\n".join(lines),
        why=why,
        allowed="the same operation on every process, with the same structure, shapes, dtypes and device type",
        do="compare the lines named above; `pad_across_processes` evens out shapes before a `gather`",
    )


def _difference(calls: Sequence[Call]) -> str:
    if len({call.shapes for call in calls}) > 1:
        return "shape mismatches. All shapes across devices must be valid."
    return "the shapes are the same, but the arguments, the structure, a dtype or a device type are not"


def _describe(call: Call) -> str:
    kinds = [f"data{path}: {dtype} on {device}" for path, _, dtype, device in call.looks]
    return f"{call.operation}({call.arguments}) at {call.site} {', '.join(kinds)}".rstrip()


def _look(path: str, leaf: Any, sizes: bool) -> tuple[Any, ...]:
    if not isinstance(leaf, torch.Tensor):
        return path, str(type(leaf))
    shape = tuple(leaf.shape) if sizes and not leaf.is_nested else leaf.dim()
    return path, shape, leaf.dtype, leaf.device.type


def _shapes(data: Any) -> str:
    """Return the shapes, nested as the data is: `[2, 3]`, `{'a': [2]}`."""
    if isinstance(data, torch.Tensor):
        return "nested" if data.is_nested else str(list(data.shape))
    kind = container_of(data)
    if kind is None:
        return str(type(data))
    labels = [label.strip("[].") for label in kind.labels(data)]
    values = [_shapes(value) for value in kind.values(data)]
    if labels and not labels[0].isdigit():
        return "{" + ", ".join(f"{label}: {value}" for label, value in zip(labels, values, strict=True)) + "}"
    return f"[{', '.join(values)}]"
