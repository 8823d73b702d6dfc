"""Plain ways to read a checkpoint in shards, which the libraries are compared with."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

import torch
from safetensors import safe_open

PAGE = 4096
CHUNK = 8 * 2**20


def shards_of(folder: Path) -> list[Path]:
    """Return the files of a checkpoint."""
    return sorted(folder.glob("*.safetensors"))


def mapped(folder: Path) -> dict[str, torch.Tensor]:
    """Return the tensors of a checkpoint, mapped from its files."""
    found = {}
    for shard in shards_of(folder):
        with safe_open(shard, "pt") as file:
            found |= {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (it is no mapping)
    return found


def touch(tensors: Iterable[torch.Tensor]) -> None:
    """Read a byte of every page of some tensors."""
    for tensor in tensors:
        tensor.detach().view(-1).view(torch.uint8)[::PAGE].sum()


def read_in_order(folder: Path) -> None:
    """Read the files of a checkpoint from beginning to end, as `dd` does."""
    buffer = memoryview(bytearray(CHUNK))
    for shard in shards_of(folder):
        with open(shard, "rb", buffering=0) as file:
            while file.readinto(buffer):
                pass


def drop_cache(folder: Path) -> None:
    """Have the system forget what it has in memory of a checkpoint."""
    for shard in shards_of(folder):
        with open(shard, "rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
