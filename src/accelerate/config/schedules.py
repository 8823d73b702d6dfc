"""The orders in which the stages of a pipeline work on the micro-batches of a batch, as `torch` has them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class ScheduleFacts:
    """What a schedule asks for.

    Args:
        name: what `torch.distributed.pipelining.schedules.get_schedule_class` knows it by.
        stages: how many stages each process has; None: two or more.
        folded: the first process has the first and the last stage, the next ones the second and the last but one, ...
        at_once: it can work on fewer micro-batches than there are stages.
        divides_backward: gradients of inputs and of weights are computed apart, to fill waits.
    """

    name: str
    stages: int | None = 1
    folded: bool = False
    at_once: bool = False
    divides_backward: bool = False


SCHEDULES: Mapping[str, ScheduleFacts] = {
    "gpipe": ScheduleFacts("GPipe", at_once=True),
    "1f1b": ScheduleFacts("1F1B"),
    "interleaved": ScheduleFacts("Interleaved1F1B", stages=None),
    "looped_bfs": ScheduleFacts("LoopedBFS", stages=None, at_once=True),
    "interleaved_zero_bubble": ScheduleFacts("InterleavedZeroBubble", stages=None, divides_backward=True),
    "zbv_zero_bubble": ScheduleFacts("ZBVZeroBubble", stages=2, folded=True, divides_backward=True),
    "dual_pipe_v": ScheduleFacts("DualPipeV", stages=2, folded=True, divides_backward=True),
}
#: The names that torch has for them, in lower case, are understood too.
SPELLINGS: Mapping[str, str] = {facts.name.lower(): name for name, facts in SCHEDULES.items()}
