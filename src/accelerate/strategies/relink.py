"""Optimizers that keep pointing at their parameters when the parameters change identity.

Sharding, tensor parallelism, XLA and fp8 conversion replace `nn.Parameter` objects. An optimizer built before holds the
old ones and would go on updating tensors that no model uses. `relinked` notes which parameter of which model each
entry of an optimizer is, by name, and points the entries at the parameters of that name afterwards.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch

from accelerate.base.messages import message

#: Where a parameter stands: which model, and its canonical name in it.
Place: TypeAlias = tuple[int, str]

#: What wrappers put in front of a parameter's name.
_WRAPPER_PARTS = re.compile(r"(^|(?<=\.))(module|_orig_mod|_fsdp_wrapped_module|_checkpoint_wrapped_module)\.")


@contextmanager
def relinked(
    models: Sequence[torch.nn.Module], optimizers: Sequence[torch.optim.Optimizer], *, release: bool = False
) -> Iterator[list[torch.nn.Module]]:
    """Keep `optimizers` pointing at the parameters of `models`, by name, across what the body does to them.

    Args:
        models: the models before the change. The body may replace entries of the list that is yielded.
        optimizers: optimizers (inner or prepared) that hold parameters of `models`.
        release: drop the optimizers' references to the old parameters during the body, so that their memory is freed.

    Raises:
        RuntimeError: a parameter that an optimizer held has no successor of the same name.
    """
    current = list(models)
    names = _names_by_parameter(current)
    held = [_Held.of(optimizer, names) for optimizer in optimizers]
    del models, names
    if release:
        for entry in held:
            entry.let_go()
    yield current
    successors = _parameters_by_name(current)
    for entry in held:
        entry.let_go()
        entry.point_at(successors)


@dataclass
class _Held:
    """What one optimizer holds: per group its parameters as places in the models, and the state kept for each place."""

    optimizer: torch.optim.Optimizer
    groups: list[list[Any]]
    states: dict[Place, Any]

    @classmethod
    def of(cls, optimizer: torch.optim.Optimizer, names: dict[torch.Tensor, Place]) -> _Held:
        groups = [
            [names.get(parameter, parameter) for parameter in group["params"]] for group in optimizer.param_groups
        ]
        states = {names[parameter]: state for parameter, state in optimizer.state.items() if parameter in names}
        return cls(optimizer, groups, states)

    def let_go(self) -> None:
        """Drop the optimizer's references to parameters of the models; what belongs to no model stays."""
        for group, entries in zip(self.optimizer.param_groups, self.groups, strict=True):
            group["params"] = [entry for entry in entries if isinstance(entry, torch.Tensor)]
        own = {entry for entries in self.groups for entry in entries if isinstance(entry, torch.Tensor)}
        for parameter in [key for key in self.optimizer.state if key not in own]:
            del self.optimizer.state[parameter]

    def point_at(self, successors: dict[Place, torch.nn.Parameter]) -> None:
        """Take the parameters that now stand at each place."""
        for group, entries in zip(self.optimizer.param_groups, self.groups, strict=True):
            group["params"] = [_successor(entry, successors) for entry in entries]
        for place, state in self.states.items():
            self.optimizer.state[_successor(place, successors)] = state


def canonical_name(name: str) -> str:
    """Return a parameter's name without what DDP, FSDP, `torch.compile` and checkpoint wrappers put in front."""
    return _WRAPPER_PARTS.sub("", name)


def _names_by_parameter(models: Sequence[torch.nn.Module]) -> dict[torch.Tensor, Place]:
    return {
        parameter: (index, canonical_name(name))
        for index, model in enumerate(models)
        for name, parameter in model.named_parameters()
    }


def _parameters_by_name(models: Sequence[torch.nn.Module]) -> dict[Place, torch.nn.Parameter]:
    return {
        (index, canonical_name(name)): parameter
        for index, model in enumerate(models)
        for name, parameter in model.named_parameters(remove_duplicate=False)
    }


def _successor(entry: Any, successors: dict[Place, torch.nn.Parameter]) -> torch.Tensor:
    """Return the parameter that `entry` (a parameter of no model, or a place in one) stands for now."""
    if isinstance(entry, torch.Tensor):
        return entry
    if entry not in successors:
        raise RuntimeError(
            message(
                given=f"an optimizer that holds the parameter {entry[1]!r}",
                why="the prepared model has no parameter of that name any more",
                allowed="preparations that keep the names of trainable parameters",
                do="build the optimizer from the model as it is passed to `prepare`, in the same call",
            )
        )
    return successors[entry]
