"""The settings of FSDP: from arguments and variables to torch's terms, and what is refused."""

from __future__ import annotations

import functools

import pytest
import torch
from torch import nn
from torch.distributed.fsdp import (
    BackwardPrefetch,
    CPUOffload,
    CPUOffloadPolicy,
    FullStateDictConfig,
    MixedPrecision,
    MixedPrecisionPolicy,
    OffloadPolicy,
    ShardedOptimStateDictConfig,
    ShardingStrategy,
    StateDictType,
)
from torch.distributed.fsdp.wrap import size_based_auto_wrap_policy, transformer_auto_wrap_policy

from accelerate.base.environ import reading
from accelerate.base.messages import forget_warnings
from accelerate.config.fsdp import FullyShardedDataParallelPlugin


@pytest.fixture(autouse=True)
def _clean(monkeypatch):
    monkeypatch.delenv("FSDP_CPU_RAM_EFFICIENT_LOADING", raising=False)
    forget_warnings()


V1 = {
    "fsdp_version": 1,
    "sharding_strategy": ShardingStrategy.FULL_SHARD,
    "reshard_after_forward": None,
    "backward_prefetch": None,
    "mixed_precision_policy": None,
    "auto_wrap_policy": None,
    "cpu_offload": CPUOffload(offload_params=False),
    "ignored_modules": None,
    "state_dict_type": StateDictType.FULL_STATE_DICT,
    "limit_all_gathers": True,
    "use_orig_params": False,
    "sync_module_states": False,
    "forward_prefetch": False,
    "activation_checkpointing": False,
    "activation_checkpointing_offload": False,
    "cpu_ram_efficient_loading": False,
    "transformer_cls_names_to_wrap": None,
    "min_num_params": None,
}
V2 = {
    **V1,
    "fsdp_version": 2,
    "sharding_strategy": None,
    "reshard_after_forward": True,
    "cpu_offload": OffloadPolicy(),
    "state_dict_type": StateDictType.SHARDED_STATE_DICT,
    "use_orig_params": None,
    "sync_module_states": None,
    "forward_prefetch": None,
}
FULL = {"sharding_strategy": ShardingStrategy.FULL_SHARD}
GRAD_OP = {"sharding_strategy": ShardingStrategy.SHARD_GRAD_OP}

BUILT = [
    ({}, {}, V1),
    ({"fsdp_version": 2}, {}, V2),
    ({}, {"FSDP_VERSION": "2"}, V2),
    ({"fsdp_version": "1"}, {"FSDP_VERSION": "2"}, V1),
    ({"sharding_strategy": "hybrid_shard"}, {}, {"sharding_strategy": ShardingStrategy.HYBRID_SHARD}),
    ({"sharding_strategy": 2}, {}, GRAD_OP),
    ({"sharding_strategy": ShardingStrategy.SHARD_GRAD_OP}, {}, GRAD_OP),
    ({}, {"FSDP_SHARDING_STRATEGY": "2"}, GRAD_OP),
    ({"reshard_after_forward": "SHARD_GRAD_OP"}, {}, {**GRAD_OP, "reshard_after_forward": ShardingStrategy(2)}),
    ({}, {"FSDP_RESHARD_AFTER_FORWARD": "FULL_SHARD"}, {**FULL, "reshard_after_forward": ShardingStrategy(1)}),
    ({"fsdp_version": 2, "reshard_after_forward": "false"}, {}, {"reshard_after_forward": False}),
    ({"fsdp_version": 2}, {"FSDP_RESHARD_AFTER_FORWARD": "false"}, {"reshard_after_forward": False}),
    ({"backward_prefetch": "backward_pre"}, {}, {"backward_prefetch": BackwardPrefetch.BACKWARD_PRE}),
    ({"backward_prefetch": BackwardPrefetch.BACKWARD_POST}, {}, {"backward_prefetch": BackwardPrefetch.BACKWARD_POST}),
    ({}, {"FSDP_BACKWARD_PREFETCH": "NO_PREFETCH"}, {"backward_prefetch": None}),
    ({"state_dict_type": "sharded_state_dict"}, {}, {"state_dict_type": StateDictType.SHARDED_STATE_DICT}),
    ({}, {"FSDP_STATE_DICT_TYPE": "LOCAL_STATE_DICT"}, {"state_dict_type": StateDictType.LOCAL_STATE_DICT}),
    ({"auto_wrap_policy": "transformer_based_wrap"}, {}, {"auto_wrap_policy": transformer_auto_wrap_policy}),
    ({"auto_wrap_policy": "SIZE_BASED_WRAP"}, {}, {"auto_wrap_policy": size_based_auto_wrap_policy}),
    ({"auto_wrap_policy": len}, {"FSDP_AUTO_WRAP_POLICY": "NO_WRAP"}, {"auto_wrap_policy": len}),
    ({}, {"FSDP_AUTO_WRAP_POLICY": "NO_WRAP"}, {"auto_wrap_policy": None}),
    ({"transformer_cls_names_to_wrap": "A, B"}, {}, {"transformer_cls_names_to_wrap": ["A", "B"]}),
    ({"transformer_cls_names_to_wrap": ["A"]}, {}, {"transformer_cls_names_to_wrap": ["A"]}),
    ({}, {"FSDP_TRANSFORMER_CLS_TO_WRAP": "A,B"}, {"transformer_cls_names_to_wrap": ["A", "B"]}),
    ({}, {"FSDP_MIN_NUM_PARAMS": "7"}, {"min_num_params": 7}),
    ({"cpu_offload": True}, {}, {"cpu_offload": CPUOffload(offload_params=True)}),
    ({}, {"FSDP_OFFLOAD_PARAMS": "true"}, {"cpu_offload": CPUOffload(offload_params=True)}),
    ({"fsdp_version": 2, "cpu_offload": True}, {}, {"cpu_offload": CPUOffloadPolicy(pin_memory=False)}),
    ({"cpu_offload": CPUOffload(True)}, {"FSDP_OFFLOAD_PARAMS": "false"}, {"cpu_offload": CPUOffload(True)}),
    ({}, {"FSDP_USE_ORIG_PARAMS": "true"}, {"use_orig_params": True}),
    ({"sync_module_states": True}, {}, {"sync_module_states": True}),
    ({}, {"FSDP_FORWARD_PREFETCH": "true"}, {"forward_prefetch": True}),
    ({}, {"FSDP_ACTIVATION_CHECKPOINTING": "true"}, {"activation_checkpointing": True}),
    ({}, {"FSDP_IGNORED_MODULES": "head.*"}, {"ignored_modules": "head.*"}),
    ({"fsdp_version": 2, "cpu_ram_efficient_loading": True}, {}, {"cpu_ram_efficient_loading": True}),
]


@pytest.mark.parametrize(("arguments", "variables", "expected"), BUILT)
def test_fields(arguments, variables, expected):
    with reading(variables):
        plugin = FullyShardedDataParallelPlugin(**arguments)
    assert {name: getattr(plugin, name) for name in expected} == expected


def test_loading_on_the_main_process_is_told_to_transformers(monkeypatch):
    import os

    FullyShardedDataParallelPlugin(fsdp_version=2)
    assert "FSDP_CPU_RAM_EFFICIENT_LOADING" not in os.environ
    FullyShardedDataParallelPlugin(fsdp_version=2, cpu_ram_efficient_loading=True)
    assert os.environ["FSDP_CPU_RAM_EFFICIENT_LOADING"] == "True"


def test_version_1_sends_weights_when_only_the_main_process_has_them():
    with pytest.warns(UserWarning, match="needs sync_module_states"):
        plugin = FullyShardedDataParallelPlugin(cpu_ram_efficient_loading=True)
    assert plugin.sync_module_states is True


def test_version_2_says_what_it_does_not_have():
    with pytest.warns(UserWarning, match="no sharding_strategy, use_orig_params; what was given has no effect"):
        plugin = FullyShardedDataParallelPlugin(fsdp_version=2, sharding_strategy=2, use_orig_params=True)
    assert (plugin.sharding_strategy, plugin.use_orig_params, plugin.reshard_after_forward) == (None, None, True)


WITHOUT_EFFECT = [
    ({"fsdp_version": 2, "limit_all_gathers": False}, "no limit_all_gathers; what was given has no effect"),
    ({"state_dict_config": FullStateDictConfig(offload_to_cpu=False)}, "^state_dict_config=.* has no effect"),
    (
        {"optim_state_dict_config": ShardedOptimStateDictConfig(offload_to_cpu=False)},
        "^optim_state_dict_config=.* has no effect",
    ),
]


@pytest.mark.parametrize(("arguments", "text"), WITHOUT_EFFECT)
def test_what_has_no_effect_says_so(arguments, text):
    with pytest.warns(UserWarning, match=text):
        FullyShardedDataParallelPlugin(**arguments)


@pytest.mark.parametrize(
    "arguments",
    [
        {"transformer_cls_names_to_wrap": ["Linear"]},
        {"min_num_params": 5, "auto_wrap_policy": "NO_WRAP"},
        {"min_num_params": 5, "auto_wrap_policy": "TRANSFORMER_BASED_WRAP", "transformer_cls_names_to_wrap": "Linear"},
        {"transformer_cls_names_to_wrap": "Linear", "auto_wrap_policy": "SIZE_BASED_WRAP", "min_num_params": 5},
    ],
)
def test_what_has_no_effect_with_a_policy_says_so(arguments):
    plugin = FullyShardedDataParallelPlugin(**arguments)
    with pytest.warns(UserWarning, match="has no effect without auto_wrap_policy=") as caught:
        plugin.set_auto_wrap_policy(nn.Linear(2, 2))
    assert len(caught) == 1


REFUSED = [
    ({"reshard_after_forward": True}, "write FULL_SHARD, or use fsdp_version=2"),
    ({"reshard_after_forward": "FULL_SHARD", "sharding_strategy": "NO_SHARD"}, "the two are one setting"),
    ({"fsdp_version": 2, "reshard_after_forward": "FULL_SHARD"}, "write true for FULL_SHARD"),
    ({"fsdp_version": 2, "forward_prefetch": True}, "leave it out"),
    ({"fsdp_version": 2, "state_dict_type": "LOCAL_STATE_DICT"}, "write SHARDED_STATE_DICT"),
    ({"activation_checkpointing_offload": True}, "set these too, or leave it out"),
    ({"activation_checkpointing_offload": True, "activation_checkpointing": True}, "fsdp_version=2"),
    ({"fsdp_version": 3}, "it isn't one of the choices"),
    ({"sharding_strategy": "FULL_SHART"}, "Did you mean 'FULL_SHARD'?"),
    ({"state_dict_type": "foo"}, "FULL_STATE_DICT, LOCAL_STATE_DICT, SHARDED_STATE_DICT"),
    ({"auto_wrap_policy": "transformer"}, "TRANSFORMER_BASED_WRAP"),
    ({"cpu_offload": CPUOffloadPolicy()}, "not an offload policy of this version"),
    ({"fsdp_version": 2, "cpu_offload": CPUOffload(True)}, "not an offload policy of this version"),
    ({"mixed_precision_policy": {"output_dtype": torch.bfloat16}}, "not a policy of this version"),
    ({"fsdp_version": 2, "mixed_precision_policy": MixedPrecision()}, "not a policy of this version"),
    ({"mixed_precision_policy": {"param_dtype": torch.int8}}, "not a policy of this version"),
    ({"mixed_precision_policy": "b16"}, "Did you mean 'bf16'?"),
]


@pytest.mark.parametrize(("arguments", "text"), REFUSED)
def test_what_is_refused(arguments, text):
    with pytest.raises(ValueError) as error:
        FullyShardedDataParallelPlugin(**arguments)
    assert text in str(error.value)


BF16 = torch.bfloat16
POLICIES = [
    (1, "bf16", MixedPrecision(BF16, BF16, BF16)),
    (1, torch.float16, MixedPrecision(torch.float16, torch.float16, torch.float16)),
    (1, "fp8", MixedPrecision(BF16, BF16, BF16)),
    (2, "bf16", MixedPrecisionPolicy(BF16, BF16, BF16)),
    (2, "fp32", MixedPrecisionPolicy(torch.float32, torch.float32, torch.float32)),
]


@pytest.mark.parametrize(("version", "precision", "policy"), POLICIES)
def test_the_policy_follows_the_precision(version, precision, policy):
    plugin = FullyShardedDataParallelPlugin(fsdp_version=version)
    plugin.set_mixed_precision(precision)
    assert plugin.mixed_precision_policy == policy
    plugin.set_mixed_precision("fp16")
    assert plugin.mixed_precision_policy == policy
    plugin.set_mixed_precision("fp16", override=True)
    assert plugin.mixed_precision_policy.param_dtype == torch.float16


def test_buffers_may_stay_in_fp32():
    plugin = FullyShardedDataParallelPlugin()
    plugin.set_mixed_precision("bf16", buffer_autocast=True)
    assert plugin.mixed_precision_policy == MixedPrecision(BF16, BF16, torch.float32)
    with pytest.raises(ValueError, match="FSDP has no policy for it"):
        plugin.set_mixed_precision("no", override=True)


GIVEN = [
    (1, {"param_dtype": "bf16"}, MixedPrecision(param_dtype=BF16)),
    (
        2,
        {"param_dtype": BF16, "reduce_dtype": "fp32"},
        MixedPrecisionPolicy(param_dtype=BF16, reduce_dtype=torch.float32),
    ),
    (2, {"cast_forward_inputs": False}, MixedPrecisionPolicy(cast_forward_inputs=False)),
    (1, "bf16", MixedPrecision(BF16, BF16, BF16)),
    (2, MixedPrecisionPolicy(param_dtype=BF16), MixedPrecisionPolicy(param_dtype=BF16)),
]


@pytest.mark.parametrize(("version", "given", "policy"), GIVEN)
def test_a_policy_may_be_given(version, given, policy):
    plugin = FullyShardedDataParallelPlugin(fsdp_version=version, mixed_precision_policy=given)
    assert plugin.mixed_precision_policy == policy


@pytest.mark.parametrize("version", [1, 2])
def test_the_layout_of_checkpoints_brings_its_settings(version):
    plugin = FullyShardedDataParallelPlugin(fsdp_version=version)
    for name, kind in (("FULL_STATE_DICT", "Full"), ("SHARDED_STATE_DICT", "Sharded")):
        plugin.set_state_dict_type(name)
        assert plugin.state_dict_type is StateDictType[name]
        assert type(plugin.state_dict_config).__name__ == f"{kind}StateDictConfig"
        assert type(plugin.optim_state_dict_config).__name__ == f"{kind}OptimStateDictConfig"
        assert plugin.state_dict_config.offload_to_cpu
    with pytest.raises(ValueError, match="there is no such layout"):
        plugin.set_state_dict_type("WHOLE")


class Block(nn.Linear):
    """A class to wrap."""


def test_the_policy_learns_the_classes_of_a_model():
    model = nn.Sequential(Block(2, 2), nn.ReLU())
    named = FullyShardedDataParallelPlugin(
        auto_wrap_policy="TRANSFORMER_BASED_WRAP", transformer_cls_names_to_wrap=["Block"]
    )
    model._no_split_modules = ["Block", "Other"]
    found = FullyShardedDataParallelPlugin(auto_wrap_policy="TRANSFORMER_BASED_WRAP")
    for plugin in (named, found):
        for _ in range(2):
            plugin.set_auto_wrap_policy(model)
            assert isinstance(plugin.auto_wrap_policy, functools.partial)
            assert plugin.auto_wrap_policy.keywords == {"transformer_layer_cls": {Block}}


def test_a_class_that_is_not_there_names_the_nearest():
    plugin = FullyShardedDataParallelPlugin(
        auto_wrap_policy="TRANSFORMER_BASED_WRAP", transformer_cls_names_to_wrap="Blocks"
    )
    with pytest.raises(ValueError, match="Did you mean 'Block'"):
        plugin.set_auto_wrap_policy(nn.Sequential(Block(2, 2)))


def test_nothing_to_go_by_makes_one_unit_and_says_so():
    plugin = FullyShardedDataParallelPlugin(auto_wrap_policy="TRANSFORMER_BASED_WRAP")
    with pytest.warns(UserWarning, match="the whole model becomes one unit"):
        plugin.set_auto_wrap_policy(nn.Sequential(Block(2, 2)))
    plugin = FullyShardedDataParallelPlugin(auto_wrap_policy="SIZE_BASED_WRAP")
    with pytest.warns(UserWarning, match="makes one unit of the whole model"):
        plugin.set_auto_wrap_policy(nn.Sequential(Block(2, 2)))
    assert plugin.auto_wrap_policy is None


def test_plugins_compare_by_their_settings():
    assert FullyShardedDataParallelPlugin() == FullyShardedDataParallelPlugin()
    assert FullyShardedDataParallelPlugin() != FullyShardedDataParallelPlugin(fsdp_version=2)
