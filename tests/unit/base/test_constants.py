"""Constants that other code relies on."""

from __future__ import annotations

import pytest
import torch

from accelerate.base import constants

# File names are what checkpoints consist of: changing one makes old checkpoints unreadable.
FILES = {
    "SCALER_NAME": "scaler.pt",
    "MODEL_NAME": "pytorch_model",
    "SAFE_MODEL_NAME": "model",
    "RNG_STATE_NAME": "random_states",
    "OPTIMIZER_NAME": "optimizer",
    "SCHEDULER_NAME": "scheduler",
    "SAMPLER_NAME": "sampler",
    "PROFILE_PATTERN_NAME": "profile_{suffix}.json",
    "WEIGHTS_NAME": "pytorch_model.bin",
    "WEIGHTS_PATTERN_NAME": "pytorch_model{suffix}.bin",
    "WEIGHTS_INDEX_NAME": "pytorch_model.bin.index.json",
    "SAFE_WEIGHTS_NAME": "model.safetensors",
    "SAFE_WEIGHTS_PATTERN_NAME": "model{suffix}.safetensors",
    "SAFE_WEIGHTS_INDEX_NAME": "model.safetensors.index.json",
    "FSDP_MODEL_NAME": "pytorch_model_fsdp",
}


@pytest.mark.parametrize(("name", "value"), FILES.items())
def test_file_names(name, value):
    assert getattr(constants, name) == value


def test_the_position_of_a_sharding_strategy_is_its_number_in_torch():
    from torch.distributed.fsdp import ShardingStrategy

    by_name = {name: place for place, name in enumerate(constants.FSDP_SHARDING_STRATEGY, start=1)}
    known = {member.name.lstrip("_"): member.value for member in ShardingStrategy}
    assert by_name == known


def test_layers_that_are_upcast():
    layers = constants.SUPPORTED_PYTORCH_LAYERS_FOR_UPCASTING
    assert isinstance(layers, tuple)
    assert {torch.nn.Linear, torch.nn.Conv2d, torch.nn.ConvTranspose3d} < set(layers)
    assert len(layers) == 7


def test_other_names_are_not_made_up():
    with pytest.raises(AttributeError, match="NO_SUCH_NAME"):
        _ = constants.NO_SUCH_NAME
