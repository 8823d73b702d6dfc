"""Names of the first releases."""

from __future__ import annotations

import importlib
import sys

import pytest
import torch

from accelerate import utils


def test_is_tpu_available_names_its_successor():
    with pytest.warns(FutureWarning, match="is_torch_xla_available"):
        assert utils.is_tpu_available() is False


def test_shard_checkpoint_still_splits():
    state = {"a": torch.zeros(100), "b": torch.ones(100)}
    with pytest.warns(FutureWarning, match="split_torch_state_dict_into_shards"):
        shards, index = utils.shard_checkpoint(state, max_shard_size=500)
    assert sorted(shards) == ["pytorch_model-00001-of-00002.bin", "pytorch_model-00002-of-00002.bin"]
    assert index["weight_map"]["b"] == "pytorch_model-00002-of-00002.bin"
    with pytest.warns(FutureWarning):
        assert utils.shard_checkpoint(state)[1] is None


def test_memory_utils_says_where_its_names_are():
    sys.modules.pop("accelerate.memory_utils", None)
    with pytest.warns(FutureWarning, match="accelerate.utils"):
        importlib.import_module("accelerate.memory_utils")


def test_rich_tracebacks_have_to_be_asked_for(monkeypatch):
    monkeypatch.delenv("ACCELERATE_ENABLE_RICH", raising=False)
    with pytest.raises(ModuleNotFoundError, match="ACCELERATE_ENABLE_RICH=1"):
        importlib.import_module("accelerate.utils.rich")
