"""The parts of a traced model that runs as a pipeline, each of which hands on what later ones need.

A stage of `torch.distributed.pipelining` talks to its neighbours only. So a part passes through what parts beyond the
next one need, and what goes into the whole model is given to all parts rather than sent along.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

#: A value between parts: the part it comes from, and which of its outputs it is (None: the only one).
Value = tuple[int, int | None]


@dataclass
class _Wiring:
    """What each part takes: names of inputs of the model, and values of earlier parts."""

    inputs: list[str] = field(default_factory=list)
    takes: list[list[str | Value]] = field(default_factory=list)

    @classmethod
    def of(cls, graph: torch.fx.Graph) -> _Wiring:
        wiring = cls()
        known: dict[Any, Any] = {}
        for node in graph.nodes:
            if node.op == "placeholder":
                known[node] = f"input_{len(wiring.inputs)}"
                wiring.inputs.append(known[node])
            elif node.op == "call_module":
                known[node] = (len(wiring.takes), None)
                wiring.takes.append([known[each] for each in node.args])
            elif node.op == "call_function" and node.target is operator.getitem:
                known[node] = (known[node.args[0]][0], node.args[1])
        return wiring

    def across(self, part: int) -> list[Value]:
        """Return the values that go from `part`, or through it, to later ones."""
        wanted = [value for takes in self.takes[part + 1 :] for value in takes if not isinstance(value, str)]
        return [value for value in dict.fromkeys(wanted) if value[0] <= part]


class Part(torch.nn.Module):
    """One part: what it computes, and what it takes and gives.

    Args:
        body: computes it.
        takes: what the body is called with.
        received: the values that come from the part before, in order.
        gives: the values that go to the next part; none: this is the last one, which gives the loss.
        number: which part it is.
    """

    def __init__(
        self,
        body: torch.nn.Module,
        takes: Sequence[str | Value],
        received: Sequence[Value],
        gives: Sequence[Value],
        number: int,
    ) -> None:
        super().__init__()
        self.body = body
        self.takes, self.received, self.gives, self.number = takes, received, gives, number

    def forward(self, *received: torch.Tensor, **inputs: torch.Tensor) -> Any:
        known: dict[Any, Any] = {**inputs, **dict(zip(self.received, received, strict=True))}
        found = self.body(*(known[each] for each in self.takes))
        if not self.gives:
            return found[0] if isinstance(found, (tuple, list)) else found
        return tuple(self._given(value, found, known) for value in self.gives)

    def _given(self, value: Value, found: Any, known: dict[Any, Any]) -> torch.Tensor:
        if value[0] != self.number:
            return known[value].clone()
        return (found if value[1] is None else found[value[1]]).contiguous()


def parts_of(pipe: Any, model: torch.nn.Module) -> list[Part]:
    """Return the parts of a traced model, which have the parameters and buffers of `model`.

    Args:
        pipe: what `split_at` returned.
        model: what was traced.
    """
    wiring = _Wiring.of(pipe.split_gm.graph)
    parts = []
    for number, takes in enumerate(wiring.takes):
        body = pipe.get_stage_module(number)
        _share_tensors(body, model)
        received = wiring.across(number - 1) if number else []
        parts.append(Part(body, takes, received, wiring.across(number), number))
    return parts


def _share_tensors(body: torch.nn.Module, model: torch.nn.Module) -> None:
    """Let a traced part use the tensors of the model that it was traced from, which have the same names."""
    for name, module in body.named_modules():
        for key in module._parameters:
            module._parameters[key] = model.get_parameter(f"{name}.{key}" if name else key)
        for key in module._buffers:
            holder = dict(model.named_modules()).get(name)
            if holder is not None and key in holder._buffers:
                module._buffers[key] = holder._buffers[key]
