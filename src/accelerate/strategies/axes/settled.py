"""What a rank of a pipeline keeps of a model that has been cut: its parts, and the parameters in them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch.distributed.fsdp import FSDPModule

from accelerate.base.messages import message
from accelerate.strategies.axes.base import Place
from accelerate.strategies.axes.elsewhere import Shared, is_elsewhere, let_go, mark, owners_of, tie_again
from accelerate.strategies.axes.parts import Cut, Part
from accelerate.strategies.axes.schedules import rank_of
from accelerate.strategies.fsdp2.sharding import shard_states
from accelerate.strategies.relink import relinked

if TYPE_CHECKING:
    from accelerate.strategies.axes.pipeline import Fitting


class Settled:
    """The parts of this rank.

    Args:
        parts: what it computes, in order.
        own: the trained parameters in them.
        shared: those of them that other ranks have too.
    """

    def __init__(self, parts: Sequence[Part], own: Sequence[torch.nn.Parameter], shared: Sequence[Shared]) -> None:
        self.parts, self.own, self.shared = list(parts), list(own), list(shared)
        self._sharded = [each for part in parts for each in part.modules() if isinstance(each, FSDPModule)]

    def reshard(self) -> None:
        """Free what was gathered for passes that no backward pass follows."""
        for module in self._sharded:
            module.reshard()

    def add(self, cut: Cut, training: bool, device: torch.device) -> None:
        """Take in what the parts compute in evaluation, or in training, as the model was cut now.

        Raises:
            RuntimeError: a part needs parameters that it doesn't need otherwise.
        """
        for part in self.parts:
            known = set(part.parameters())
            part.add(cut.body(part.number, part, device), training)
            if any(parameter not in known for parameter in part.parameters()):
                raise RuntimeError(
                    message(
                        given=f"a model that uses other parameters in {'training' if training else 'evaluation'}",
                        why="a rank keeps the parameters that its stages used when the model was first called",
                        allowed="models whose stages use the same parameters in training and evaluation",
                        do="name other split_points in PipelineParallelConfig, or call the model in one mode only",
                    )
                )


def settle(model: torch.nn.Module, parts: Sequence[Part], place: Place, fitting: Fitting) -> Settled:
    """Keep what the parts of this rank use of a model, where `fitting` puts it, and let go of the rest.

    Args:
        model: the model.
        parts: all parts of it, those of other ranks too.
        place: the axis.
        fitting: what the strategy does with them; it refuses parts that it can't put anywhere.
    """
    rank, ranks = place.mesh.get_local_rank(), place.mesh.size()
    users: dict[torch.Tensor, set[int]] = {}
    for part in parts:
        for tensor in (*part.parameters(), *part.buffers()):
            users.setdefault(tensor, set()).add(rank_of(part.number, ranks, place.settings.facts))
    mine = [part for part in parts if rank_of(part.number, ranks, place.settings.facts) == rank]
    owners = owners_of(model)
    optimizers = list(fitting.optimizers())
    with relinked([model], optimizers):
        for tensor in model.buffers():
            if tensor in users and rank not in users[tensor]:
                mark(tensor)
        for parameter in owners:
            if rank not in users.get(parameter, ()):
                let_go(parameter)
        fitting.place(model, mine)
        for part in mine:
            part.beside.give_back()
        became = tie_again(owners.items())
    for optimizer in optimizers:
        for gone in [each for each in optimizer.state if is_elsewhere(each)]:
            del optimizer.state[gone]
    shard_states(optimizers)
    trained = [each for each in owners if each.requires_grad and rank in users.get(each, ())]
    for part in mine:
        part.context = fitting.context
    shared = [
        Shared(became[each], sorted(users[each]), place.mesh.get_group()) for each in trained if len(users[each]) > 1
    ]
    return Settled(mine, [became[each] for each in trained], shared)
