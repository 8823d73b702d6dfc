"""What a pipeline doesn't go together with is refused before it is built, or when its parts are placed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from accelerate.base.messages import message
from accelerate.checkpointing.problems import shortened
from accelerate.config.enums import DynamoBackend
from accelerate.config.schedules import SCHEDULES

if TYPE_CHECKING:
    from accelerate.strategies.base import Setup


def refuse_shared(model: torch.nn.Module, parts: Sequence[torch.nn.Module]) -> None:
    """Refuse parts that are sharded one by one and have a parameter in common.

    Raises:
        NotImplementedError: there is such a parameter.
    """
    users = Counter(parameter for part in parts for parameter in part.parameters())
    shared = [name for name, parameter in model.named_parameters() if users[parameter] > 1]
    if shared:
        raise NotImplementedError(
            message(
                given=f"{shortened(shared)} in two stages of the same process, with FSDP",
                why="FSDP shards each stage by itself, and a parameter can be sharded once",
                allowed="parameters that are tied within a stage, or between stages of different processes",
                do="choose a schedule with one stage for each process, as '1f1b', or other split_points",
            )
        )


def refuse_others(setup: Setup) -> None:
    """Refuse what a pipeline doesn't go together with.

    Raises:
        NotImplementedError: there is something of this kind.
    """
    layout, plugin = setup.parallelism, setup.fsdp_plugin
    others = [f"{name}_size" for name in ("cp", "sp") if getattr(layout, f"{name}_size", 1) > 1]
    if plugin is not None and plugin.fsdp_version != 2:
        others.append("FSDP of version 1")
    if setup.ddp_handler is not None and (plugin is not None or layout is None or layout.tp_enabled):
        others.append("DistributedDataParallelKwargs where FSDP or tensor parallel average gradients themselves")
    _refuse_divided_backward(setup)
    if others:
        raise NotImplementedError(
            message(
                given=f"pp_size with {' and '.join(others)}",
                why="stages hand on whole sequences, and are sharded by FSDP of version 2 alone",
                allowed="pp_size with dp_replicate_size, dp_shard_size (fsdp_version=2) and tp_size",
                do="leave the others out",
            )
        )


def _refuse_divided_backward(setup: Setup) -> None:
    """Refuse schedules that compute the gradients of weights apart where something waits for whole backward passes.

    Raises:
        NotImplementedError: there is something of this kind.
    """
    layout = setup.parallelism
    if layout is None or not layout.pp_handler.facts.divides_backward:
        return
    if setup.fsdp_plugin is not None or (layout.tp_enabled and layout.dp_replicate_enabled):
        other, why = "gradients that torch reduces block by block", "torch leaves out gradients then, without a word"
    elif setup.dynamo.backend != DynamoBackend.NO:
        other, why = "torch.compile", "compiled backward passes are computed as a whole"
    else:
        return
    raise NotImplementedError(
        message(
            given=f"schedule={layout.pp_handler.schedule!r} with {other}",
            why=f"it computes the gradients of inputs and of weights apart, and {why}",
            allowed=", ".join(name for name, facts in SCHEDULES.items() if not facts.divides_backward),
            do="choose one of these; 'interleaved' waits nearly as little",
        )
    )
