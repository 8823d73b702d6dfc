"""A stand-in for the parts of DeepSpeed that divide sequences, which is not installed where unit tests run.

It has the names, arguments and results of DeepSpeed 0.19, and talks through `Collectives` where DeepSpeed talks through
a process group.
"""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch


class UlyssesSPDataLoaderAdapter:
    """Exchanges the batches of all ranks for this rank's parts of them."""

    def __init__(self, dl: Any, sp_rank: int, sp_group: Any, sp_world_size: int, device: Any) -> None:
        self.dl, self.rank, self.group, self.size = dl, sp_rank, sp_group, sp_world_size
        self.iter = iter(dl)
        self.parts: list[dict[str, Any]] = []

    def __iter__(self):
        return self

    def __next__(self) -> dict[str, Any]:
        if not self.parts:
            self.refill()
        return self.parts.pop(0)

    def refill(self) -> None:
        try:
            batch = next(self.iter)
        except StopIteration:
            self.iter = iter(self.dl)
            raise
        assert all(value.is_contiguous() for value in batch.values())
        gathered = {name: self.group.all_gather(value) for name, value in batch.items()}
        for rank in range(self.size):
            part = {name: value[rank] for name, value in gathered.items()}
            part["shift_labels"] = torch.nn.functional.pad(part.pop("labels"), (0, 1), value=-100)[:, 1:]
            cut = part["input_ids"].shape[1] // self.size
            self.parts.append({name: value[:, cut * self.rank : cut * (self.rank + 1)] for name, value in part.items()})


class UlyssesSPAttentionHF(torch.nn.Module):
    """Notes what it was built for and returns what the attention it was given does, with a mark."""

    def __init__(self, **facts: Any) -> None:
        super().__init__()
        self.facts = facts
        self.core_attn_implementation: str | None = None

    def forward(self, module: Any, query: Any, key: Any, value: Any, mask: Any, **kwargs: Any) -> Any:
        module.num_key_value_groups = 99
        return "divided", self.facts["attn"](module, query, key, value, mask, **kwargs)


def install(monkeypatch: pytest.MonkeyPatch, version: str = "0.19.8") -> SimpleNamespace:
    """Let `import deepspeed` find the stand-in of this version; return what it keeps: `started` and `groups`."""
    kept = SimpleNamespace(started=[], groups=SimpleNamespace(mpu=None))
    comm = {
        "is_initialized": lambda: bool(kept.started),
        "init_distributed": lambda **options: kept.started.append(options),
    }
    ulysses = {each.__name__: each for each in (UlyssesSPDataLoaderAdapter, UlyssesSPAttentionHF)}
    for name, content in {
        "deepspeed": {},
        "deepspeed.comm": comm,
        "deepspeed.utils": {"groups": kept.groups},
        "deepspeed.runtime": {},
        "deepspeed.runtime.sequence_parallel": {},
        "deepspeed.runtime.sequence_parallel.ulysses_sp": ulysses,
    }.items():
        module = ModuleType(name)
        vars(module).update(content)
        monkeypatch.setitem(sys.modules, name, module)
        parent, _, last = name.rpartition(".")
        if parent:
            setattr(sys.modules[parent], last, module)
    monkeypatch.setattr("accelerate.strategies.axes.ulysses.is_deepspeed_available", lambda: True)
    monkeypatch.setattr("accelerate.strategies.axes.ulysses.installed", lambda name: version)
    monkeypatch.setattr(
        "accelerate.strategies.axes.ulysses.compare_versions",
        lambda name, sign, least: tuple(map(int, version.split("."))) < tuple(map(int, least.split("."))),
    )
    return kept
