"""Each field of the plugin that the first version of FSDP hands to torch reaches the argument that it is about."""

from __future__ import annotations

import pytest
import torch
from torch.distributed.fsdp import BackwardPrefetch, CPUOffload, MixedPrecision, ShardingStrategy

from accelerate.base.messages import forget_warnings
from accelerate.config.fsdp import FullyShardedDataParallelPlugin
from accelerate.strategies.fsdp1.wrapping import settings_of

BF16 = MixedPrecision(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
GPU = torch.device("cuda", 1)
DEFAULTS = {
    "device_mesh": "the mesh",
    "sharding_strategy": ShardingStrategy.FULL_SHARD,
    "cpu_offload": CPUOffload(offload_params=False),
    "backward_prefetch": None,
    "mixed_precision": None,
    "device_id": GPU,
    "forward_prefetch": False,
    "limit_all_gathers": True,
    "use_orig_params": False,
}
FIELDS = [
    ({}, {}),
    ({"sharding_strategy": "HYBRID_SHARD_ZERO2"}, {"sharding_strategy": ShardingStrategy._HYBRID_SHARD_ZERO2}),
    ({"reshard_after_forward": "SHARD_GRAD_OP"}, {"sharding_strategy": ShardingStrategy.SHARD_GRAD_OP}),
    ({"cpu_offload": True}, {"cpu_offload": CPUOffload(offload_params=True)}),
    ({"backward_prefetch": "BACKWARD_POST"}, {"backward_prefetch": BackwardPrefetch.BACKWARD_POST}),
    ({"mixed_precision_policy": BF16}, {"mixed_precision": BF16}),
    ({"mixed_precision_policy": {"param_dtype": "bf16", "reduce_dtype": "fp32"}}, {"mixed_precision": BF16}),
    ({"forward_prefetch": True}, {"forward_prefetch": True}),
    ({"limit_all_gathers": False}, {"limit_all_gathers": False}),
    ({"use_orig_params": True}, {"use_orig_params": True}),
]


@pytest.mark.parametrize(("arguments", "changed"), FIELDS)
def test_a_field_reaches_its_argument(arguments, changed):
    plugin = FullyShardedDataParallelPlugin(**arguments)
    assert settings_of(plugin, "the mesh", GPU) == {**DEFAULTS, **changed}


def test_parameters_are_in_host_memory_on_the_cpu_already():
    forget_warnings()
    plugin = FullyShardedDataParallelPlugin(cpu_offload=True)
    with pytest.warns(UserWarning, match="cpu_offload has nothing to do on the CPU"):
        found = settings_of(plugin, "the mesh", torch.device("cpu", 0))
    assert found == {**DEFAULTS, "device_id": torch.device("cpu")}
