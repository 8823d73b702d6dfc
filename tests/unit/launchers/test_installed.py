"""A run whose modules are missing is refused before processes are started, with what installs them."""

from __future__ import annotations

import importlib.util
from typing import Any

import pytest

from accelerate.launchers.installed import check_installed
from tests.launch.plans import settings_of

POD = "{distributed_type: XLA, tpu_use_cluster: true}"


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have none of the modules that some runs need."""
    find = importlib.util.find_spec

    def find_spec(name: str, package: str | None = None) -> Any:
        return None if name in ("deepspeed", "torch_xla") else find(name, package)

    monkeypatch.setattr(importlib.util, "find_spec", find_spec)


@pytest.mark.parametrize(
    ("line", "config", "parts"),
    [
        ("--use_deepspeed SCRIPT", "", ["--use_deepspeed where deepspeed isn't installed", "accelerate[deepspeed]"]),
        ("SCRIPT", "{distributed_type: DEEPSPEED}", ["`distributed_type: DEEPSPEED` in c.yaml where deepspeed"]),
        ("--tpu SCRIPT", "", ["--tpu where torch_xla isn't installed", "accelerate[tpu]"]),
    ],
)
@pytest.mark.usefixtures("bare")
def test_what_is_missing_is_named(line: str, config: str, parts: list[str]) -> None:
    with pytest.raises(ImportError) as refused:
        check_installed(settings_of(line, config))
    assert [part for part in parts if part not in str(refused.value)] == []


@pytest.mark.parametrize(
    ("line", "config"), [("SCRIPT", ""), ("--use_deepspeed --submit slurm SCRIPT", ""), ("SCRIPT", POD)]
)
@pytest.mark.usefixtures("bare")
def test_other_runs_need_nothing_here(line: str, config: str) -> None:
    assert check_installed(settings_of(line, config)) is None
