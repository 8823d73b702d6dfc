"""From the parts of a rank to what runs micro-batches through them: torch's stages and schedules."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import _ComputationType, get_schedule_class

from accelerate.base.messages import message

if TYPE_CHECKING:
    from accelerate.config.schedules import ScheduleFacts
    from accelerate.strategies.axes.parts import Part


BACKWARD = (
    _ComputationType.FULL_BACKWARD,
    _ComputationType.BACKWARD_INPUT,
    _ComputationType.BACKWARD_WEIGHT,
    _ComputationType.SEND_B,
    _ComputationType.RECV_B,
    _ComputationType.REDUCE_GRAD,
)


def rank_of(stage: int, ranks: int, facts: ScheduleFacts) -> int:
    """Return the rank that has a stage."""
    turn, place = divmod(stage, ranks)
    return ranks - 1 - place if facts.folded and turn % 2 else place


def build_schedule(
    parts: Sequence[Part],
    total: int,
    count: int,
    facts: ScheduleFacts,
    loss: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
    backward: bool,
    device: torch.device,
    group: Any,
) -> Any:
    """Return what runs `count` micro-batches through the stages of this rank.

    Args:
        parts: what the stages compute.
        total: how many stages there are on all ranks.
        count: how many micro-batches there are.
        facts: what the schedule asks for.
        loss: the share of the loss of one micro-batch, of what the last stage returns.
        backward: backward passes follow; otherwise the schedule is only good for `eval`.
        device: where stages compute.
        group: the ranks of the pipeline.

    Raises:
        ValueError: the schedule can't work on so many micro-batches.
    """
    stages = [_of_zeros(PipelineStage(part, part.number, total, device, group=group)) for part in parts]
    kind: Any = get_schedule_class(facts.name)
    try:
        schedule = kind(stages[0] if facts.stages == 1 else stages, count, loss_fn=loss, scale_grads=False)
    except ValueError as error:
        raise ValueError(
            message(
                given=f"{count} micro-batches for the schedule {facts.name}",
                why=str(error),
                allowed=f"for {total} stages, {total} micro-batches or a multiple",
                do="change the batch size, or num_microbatches of PipelineParallelConfig",
            )
        ) from error

    if facts.folded and not backward:
        schedule.pipeline_order_with_comms = _forward_passes(schedule.pipeline_order_with_comms)
    return schedule


def _forward_passes(order: Mapping[int, Sequence[Any]]) -> dict[int, list[Any]]:
    """Return an order of actions without backward passes, which torch tries between stages of one rank in any case."""
    found: dict[int, list[Any]] = {}
    for rank, actions in order.items():
        single = [part for action in actions if action is not None for part in action.sub_actions or (action,)]
        found[rank] = [each for each in single if each.computation_type not in BACKWARD]
    return found


def _of_zeros(stage: Any) -> Any:
    """Have a stage find out shapes from zeros, where torch takes what is in memory, which may be no valid token."""
    made_up = stage._to_tensor

    def to_tensor(value: Any) -> torch.Tensor:
        found = made_up(value)
        if not isinstance(value, torch.Tensor):
            found.data.zero_()
        return found

    stage._to_tensor = to_tensor
    return stage
