"""From a configuration of FSDP version 1 to one of version 2: every key is kept, renamed, named or refused."""

from __future__ import annotations

import logging

import pytest
import yaml

from accelerate.commands.to_fsdp2 import convert_config_to_fsdp2, to_fsdp2_command, to_fsdp2_command_parser


def of(**section):
    return {"distributed_type": "FSDP", "num_processes": 8, "fsdp_config": section}


@pytest.mark.parametrize(
    ("section", "expected"),
    [
        ({"fsdp_sharding_strategy": "FULL_SHARD"}, {"fsdp_reshard_after_forward": True}),
        ({"fsdp_sharding_strategy": "shard_grad_op"}, {"fsdp_reshard_after_forward": False}),
        ({"fsdp_reshard_after_forward": "HYBRID_SHARD_ZERO2"}, {"fsdp_reshard_after_forward": False}),
        ({"fsdp_sharding_strategy": 1}, {"fsdp_reshard_after_forward": True}),
        (
            {"fsdp_state_dict_type": "FULL_STATE_DICT", "offload_params": True, "fsdp_min_num_params": 3},
            {"fsdp_state_dict_type": "FULL_STATE_DICT", "fsdp_offload_params": True, "fsdp_min_num_params": 3},
        ),
    ],
)
def test_keys_and_values(section, expected):
    converted = convert_config_to_fsdp2(of(**section))
    assert converted == {**of(), "fsdp_config": {**expected, "fsdp_version": 2}}


@pytest.mark.parametrize("key", ["backward_prefetch", "forward_prefetch", "sync_module_states", "use_orig_params"])
def test_what_is_left_out_is_named(caplog, key):
    with caplog.at_level(logging.WARNING):
        converted = convert_config_to_fsdp2(of(**{f"fsdp_{key}": True}))
    assert converted["fsdp_config"] == {"fsdp_version": 2}
    assert f"fsdp_{key} is left out" in caplog.text


@pytest.mark.parametrize(
    ("section", "text"),
    [
        ({"fsdp_state_dict_type": "LOCAL_STATE_DICT"}, "SHARDED_STATE_DICT"),
        ({"fsdp_sharding_strategy": "NO_SHARD"}, "always shards"),
        ({"fsdp_sharding_strategy": "FULL_SHART"}, "Did you mean 'FULL_SHARD'?"),
        ({"fsdp_ofload_params": True}, "Did you mean 'fsdp_offload_params'?"),
        ({"fsdp_sharding_strategy": "FULL_SHARD", "fsdp_reshard_after_forward": "SHARD_GRAD_OP"}, "one setting"),
    ],
)
def test_what_has_no_counterpart_is_refused(section, text):
    with pytest.raises(ValueError, match=text):
        convert_config_to_fsdp2(of(**section))


#: As files of 0.10, 0.12, 0.20 and 0.34 had them, each with what of it is told rather than kept.
HISTORICAL = {
    "min_num_params: 2000, offload_params: false, sharding_strategy: 1": set(),
    "fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP, fsdp_backward_prefetch: BACKWARD_PRE, fsdp_offload_params: false, "
    "fsdp_sharding_strategy: 1, fsdp_state_dict_type: FULL_STATE_DICT, fsdp_transformer_layer_cls_to_wrap: BertLayer": {
        "fsdp_backward_prefetch"
    },
    "fsdp_auto_wrap_policy: NO_WRAP, fsdp_backward_prefetch: NO_PREFETCH, fsdp_forward_prefetch: true, "
    "fsdp_sync_module_states: true, fsdp_use_orig_params: false": {
        "fsdp_backward_prefetch",
        "fsdp_forward_prefetch",
        "fsdp_sync_module_states",
        "fsdp_use_orig_params",
    },
    "fsdp_activation_checkpointing: true, fsdp_cpu_ram_efficient_loading: true, fsdp_ignored_modules: head.*, "
    "fsdp_reshard_after_forward: SHARD_GRAD_OP, fsdp_version: 1": set(),
}


@pytest.mark.parametrize(("text", "told"), HISTORICAL.items())
def test_no_key_is_lost(caplog, text, told):
    section = yaml.safe_load(f"{{{text}}}")
    with caplog.at_level(logging.WARNING):
        new = convert_config_to_fsdp2(of(**section))["fsdp_config"]
    named = {key if key.startswith("fsdp_") else f"fsdp_{key}": value for key, value in section.items()}
    kept = {key: value for key, value in named.items() if key in new and key != "fsdp_version"}
    renamed = {"fsdp_sharding_strategy", "fsdp_reshard_after_forward", "fsdp_version"} & named.keys()
    assert kept.keys() | told | renamed == named.keys()
    assert all(f"{key} is left out" in caplog.text for key in told)
    assert {key: new[key] for key in kept if key not in renamed} == {
        key: value for key, value in kept.items() if key not in renamed
    }


def test_hybrid_strategies_become_axes():
    config = {**of(fsdp_sharding_strategy="HYBRID_SHARD"), "num_machines": 2}
    converted = convert_config_to_fsdp2(config)
    assert converted["fsdp_config"]["fsdp_reshard_after_forward"] is True
    assert converted["parallelism_config"] == {
        "parallelism_config_dp_replicate_size": 2,
        "parallelism_config_dp_shard_size": 4,
    }


@pytest.mark.parametrize("config", [of(fsdp_version=2, fsdp_offload_params=True), of(), {"distributed_type": "NO"}])
def test_nothing_to_convert(config):
    assert convert_config_to_fsdp2(config) == config


def command(*args):
    to_fsdp2_command(to_fsdp2_command_parser().parse_args([str(each) for each in args]))


def test_the_command(tmp_path, capsys):
    old, new = tmp_path / "old.yaml", tmp_path / "new.yaml"
    old.write_text(yaml.safe_dump(of(fsdp_sharding_strategy="FULL_SHARD")))
    command("--config_file", old, "--output_file", new)
    assert str(new) in capsys.readouterr().out
    assert yaml.safe_load(new.read_text())["fsdp_config"]["fsdp_version"] == 2
    assert yaml.safe_load(old.read_text()) == of(fsdp_sharding_strategy="FULL_SHARD")
    command("--config_file", old, "--overwrite")
    assert yaml.safe_load(old.read_text()) == yaml.safe_load(new.read_text())


def test_files_that_are_refused(tmp_path):
    with pytest.raises(FileNotFoundError):
        command("--config_file", tmp_path / "none.yaml", "--overwrite")
    old = tmp_path / "old.yaml"
    old.write_text("")
    with pytest.raises(ValueError, match="--output_file"):
        command("--config_file", old)
    with pytest.raises(FileExistsError):
        command("--config_file", old, "--output_file", old)
    with pytest.raises(ValueError, match="empty"):
        command("--config_file", old, "--overwrite")
