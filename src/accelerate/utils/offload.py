"""Weights outside of a model: offload folders, and mappings that read from them."""

from __future__ import annotations

from accelerate.big_modeling.offloaded import OffloadedWeightsLoader, extract_submodules_state_dict
from accelerate.big_modeling.store import load_offloaded_weight, offload_state_dict, offload_weight, save_offload_index
from accelerate.hooks.weights import PrefixedDataset

__all__ = [
    "OffloadedWeightsLoader",
    "PrefixedDataset",
    "extract_submodules_state_dict",
    "load_offloaded_weight",
    "offload_state_dict",
    "offload_weight",
    "save_offload_index",
]
