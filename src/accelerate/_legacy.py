"""Names that published code still reaches for: each works, with a `FutureWarning` that names what replaces it."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


def is_tpu_available(check_device: bool = True) -> bool:
    """Whether a TPU can be used; the old spelling of `is_torch_xla_available(check_is_tpu=True)`."""
    from accelerate.devices.capability import is_torch_xla_available

    _old("is_tpu_available", "is_torch_xla_available(check_is_tpu=True)")
    return is_torch_xla_available(check_is_tpu=check_device)


def shard_checkpoint(
    state_dict: dict[str, torch.Tensor], max_shard_size: int | str = "10GB", weights_name: str = "pytorch_model.bin"
) -> tuple[dict[str, dict[str, torch.Tensor]], dict[str, Any] | None]:
    """Split a state dict into shards; the old spelling of `huggingface_hub.split_torch_state_dict_into_shards`.

    Args:
        state_dict: tensors by name.
        max_shard_size: bytes, or text such as "10GB".
        weights_name: file name of an unsplit state dict.

    Returns:
        The shards by file name, and the index of a split state dict (None when it is one shard).
    """
    from huggingface_hub import split_torch_state_dict_into_shards

    _old("shard_checkpoint", "huggingface_hub.split_torch_state_dict_into_shards")
    stem, _, suffix = weights_name.rpartition(".")
    split = split_torch_state_dict_into_shards(
        state_dict, max_shard_size=max_shard_size, filename_pattern=f"{stem}{{suffix}}.{suffix}"
    )
    shards = {file: {name: state_dict[name] for name in names} for file, names in split.filename_to_tensors.items()}
    index = {"metadata": split.metadata, "weight_map": split.tensor_to_filename} if split.is_sharded else None
    return shards, index


def _old(name: str, replacement: str) -> None:
    warnings.warn(f"{name} is an old spelling; use {replacement}.", FutureWarning, stacklevel=3)
