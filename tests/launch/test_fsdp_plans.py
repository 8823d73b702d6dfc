"""Golden: how a launch hands on what is said about FSDP, on any device."""

from __future__ import annotations

import pytest

from accelerate.launchers.hardware import Hardware
from accelerate.launchers.registry import select
from tests.launch.plans import CPU, FOUR_GPUS, plan_of, settings_of

FSDP = "{distributed_type: FSDP, num_processes: 2, fsdp_config: {fsdp_version: 2, reshard_after_forward: false}}"
WRITTEN_BY_1_15 = """
compute_environment: LOCAL_MACHINE
debug: false
distributed_type: FSDP
downcast_bf16: 'no'
enable_cpu_affinity: false
fsdp_config:
  fsdp_activation_checkpointing: false
  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP
  fsdp_backward_prefetch: BACKWARD_PRE
  fsdp_cpu_ram_efficient_loading: true
  fsdp_forward_prefetch: false
  fsdp_offload_params: false
  fsdp_reshard_after_forward: FULL_SHARD
  fsdp_state_dict_type: SHARDED_STATE_DICT
  fsdp_sync_module_states: true
  fsdp_transformer_layer_cls_to_wrap: A,B
  fsdp_use_orig_params: true
  fsdp_version: 1
machine_rank: 0
main_training_function: main
mixed_precision: bf16
num_machines: 1
num_processes: 4
rdzv_backend: static
same_network: true
tpu_env: []
tpu_use_cluster: false
tpu_use_sudo: false
use_cpu: false
"""
OF_1_15 = {
    "FSDP_ACTIVATION_CHECKPOINTING": "false",
    "FSDP_AUTO_WRAP_POLICY": "TRANSFORMER_BASED_WRAP",
    "FSDP_BACKWARD_PREFETCH": "BACKWARD_PRE",
    "FSDP_CPU_RAM_EFFICIENT_LOADING": "true",
    "FSDP_FORWARD_PREFETCH": "false",
    "FSDP_OFFLOAD_PARAMS": "false",
    "FSDP_RESHARD_AFTER_FORWARD": "FULL_SHARD",
    "FSDP_STATE_DICT_TYPE": "SHARDED_STATE_DICT",
    "FSDP_SYNC_MODULE_STATES": "true",
    "FSDP_TRANSFORMER_CLS_TO_WRAP": "A,B",
    "FSDP_USE_ORIG_PARAMS": "true",
    "FSDP_VERSION": "1",
}
ON = {"ACCELERATE_USE_FSDP": "true"}
MESH = {"ACCELERATE_USE_PARALLELISM_CONFIG": "true"}
ON_CPU = {**ON, "ACCELERATE_USE_CPU": "true"}

#: What a launch hands on that is not about FSDP.
BESIDE = {"OMP_NUM_THREADS", "ACCELERATE_CPU_AFFINITY", "ACCELERATE_DEBUG_MODE", "ACCELERATE_DOWNCAST_BF16"}

ROWS = {
    "by flag, on the CPU": ("--cpu --use_fsdp --num_processes 2 SCRIPT", "", FOUR_GPUS, ON_CPU),
    "by flag, where there is only the CPU": ("--use_fsdp --num_processes 2 SCRIPT", "", CPU, ON_CPU),
    "by flag, on GPUs": ("--use_fsdp --fsdp_version 2 SCRIPT", "", FOUR_GPUS, {**ON, "FSDP_VERSION": "2"}),
    "by config, on the CPU": (
        "--cpu SCRIPT",
        FSDP,
        FOUR_GPUS,
        {**ON_CPU, "FSDP_VERSION": "2", "FSDP_RESHARD_AFTER_FORWARD": "false"},
    ),
    "by config that says CPU": (
        "SCRIPT",
        "{distributed_type: FSDP, num_processes: 2, use_cpu: true}",
        FOUR_GPUS,
        ON_CPU,
    ),
    "a flag wins over the config": (
        "--fsdp_version 1 --fsdp-reshard-after-forward SHARD_GRAD_OP SCRIPT",
        FSDP,
        FOUR_GPUS,
        {**ON, "FSDP_VERSION": "1", "FSDP_RESHARD_AFTER_FORWARD": "SHARD_GRAD_OP"},
    ),
    "a config of 1.15": ("SCRIPT", WRITTEN_BY_1_15, FOUR_GPUS, {**ON, **OF_1_15, "ACCELERATE_MIXED_PRECISION": "bf16"}),
    "axes by flag": (
        "--use_fsdp --parallelism_config_dp_shard_size 4 SCRIPT",
        "",
        FOUR_GPUS,
        {**ON, **MESH, "PARALLELISM_CONFIG_DP_SHARD_SIZE": "4"},
    ),
    "axes by config": (
        "SCRIPT",
        "{distributed_type: FSDP, num_processes: 4, parallelism_config: {parallelism_config_dp_shard_size: 2, "
        "parallelism_config_dp_replicate_size: 2, parallelism_config_cp_comm_strategy: allgather}}",
        FOUR_GPUS,
        {
            **ON,
            **MESH,
            "PARALLELISM_CONFIG_DP_SHARD_SIZE": "2",
            "PARALLELISM_CONFIG_DP_REPLICATE_SIZE": "2",
            "PARALLELISM_CONFIG_CP_COMM_STRATEGY": "allgather",
        },
    ),
    "not this time": ("--no_use_fsdp SCRIPT", FSDP, FOUR_GPUS, {"ACCELERATE_USE_FSDP": "false"}),
}


@pytest.mark.parametrize(("line", "config", "hardware", "variables"), ROWS.values(), ids=ROWS.keys())
def test_variables(line: str, config: str, hardware: Hardware, variables: dict[str, str]):
    env = dict(plan_of(line, config, hardware).env)
    if "ACCELERATE_USE_CPU" not in variables:
        env.pop("ACCELERATE_USE_CPU", None)
    env = {name: value for name, value in env.items() if name not in BESIDE}
    if variables.get("ACCELERATE_USE_FSDP") == "false":
        env = {name: value for name, value in env.items() if not name.startswith("FSDP_")}
    assert env == variables


def test_several_processes_are_started_by_torchrun():
    assert plan_of("--use_fsdp SCRIPT", hardware=FOUR_GPUS).num_processes == 4


def test_a_flag_without_fsdp_is_named():
    settings = settings_of("--fsdp_version 2 --num_processes 2 SCRIPT")
    assert select(settings).ignored(settings) == [
        "--fsdp_version 2 has no effect: parameters are sharded with --use_fsdp only"
    ]


REFUSED = {
    "--use_fsdp --fsdp_version 3 SCRIPT": "3",
    "--use_fsdp --fsdp_sharding_strategy FULL_SHART SCRIPT": "Did you mean 'FULL_SHARD'?",
}


@pytest.mark.parametrize(("line", "text"), REFUSED.items())
def test_what_is_refused(line: str, text: str, capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit):
        plan_of(line)
    assert text in capsys.readouterr().err


def test_an_unknown_key_names_the_nearest():
    with pytest.raises(ValueError, match="fsdp_version"):
        plan_of("SCRIPT", "{distributed_type: FSDP, fsdp_config: {fsdp_verson: 2}}")
