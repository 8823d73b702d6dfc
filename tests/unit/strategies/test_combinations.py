"""What a pipeline doesn't go together with is refused, with what does."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from accelerate.config.dynamo import TorchDynamoPlugin
from accelerate.config.parallelism import ParallelismConfig
from accelerate.config.pipeline_parallel import PipelineParallelConfig
from accelerate.strategies.axes.combinations import refuse_others, refuse_shared

V1, V2 = SimpleNamespace(fsdp_version=1), SimpleNamespace(fsdp_version=2)
ZERO_BUBBLE = "interleaved_zero_bubble"


def setup(schedule: str = "1f1b", plugin: Any = None, handler: Any = None, compiled: bool = False, **sizes: int) -> Any:
    layout = ParallelismConfig(pp_size=2, pp_handler=PipelineParallelConfig(schedule), **sizes)
    dynamo = TorchDynamoPlugin(backend="aot_eager" if compiled else "no")
    return SimpleNamespace(parallelism=layout, fsdp_plugin=plugin, ddp_handler=handler, dynamo=dynamo)


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"cp_size": 2}, "pp_size with cp_size"),
        ({"sp_size": 2}, "pp_size with sp_size"),
        ({"plugin": V1, "dp_shard_size": 2}, "FSDP of version 1"),
        ({"plugin": V2, "dp_shard_size": 2, "handler": object()}, "average gradients themselves"),
        ({"tp_size": 2, "dp_replicate_size": 2, "handler": object()}, "average gradients themselves"),
        ({"schedule": ZERO_BUBBLE, "plugin": V2, "dp_shard_size": 2}, "torch leaves out gradients"),
        ({"schedule": ZERO_BUBBLE, "tp_size": 2, "dp_replicate_size": 2}, "torch leaves out gradients"),
        ({"schedule": "dual_pipe_v", "compiled": True}, "computed as a whole"),
    ],
)
def test_what_is_refused(given: dict[str, Any], text: str) -> None:
    with pytest.raises(NotImplementedError, match=text) as error:
        refuse_others(setup(**given))
    assert "What to do: " in str(error.value)


@pytest.mark.parametrize(
    "given",
    [
        {"plugin": V2, "dp_shard_size": 2, "dp_replicate_size": 2, "tp_size": 2, "compiled": True},
        {"dp_replicate_size": 2, "handler": object(), "schedule": ZERO_BUBBLE},
        {"tp_size": 2, "schedule": "zbv_zero_bubble"},
        {"schedule": "interleaved", "compiled": True},
    ],
)
def test_what_is_taken(given: dict[str, Any]) -> None:
    assert refuse_others(setup(**given)) is None


def test_a_parameter_in_two_stages_that_are_sharded_one_by_one_is_refused() -> None:
    first, last = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)
    model = torch.nn.Sequential(first, torch.nn.Linear(2, 2), last)
    assert refuse_shared(model, [first, last]) is None
    last.weight = first.weight
    with pytest.raises(NotImplementedError, match=r"Given: 0\.weight in two stages of the same process, with FSDP"):
        refuse_shared(model, [first, last])
