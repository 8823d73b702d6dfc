"""CPU cores are counted once, however many threads they have."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from accelerate.launchers import environment


def test_two_threads_of_a_core_count_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for cpu, siblings in enumerate(["0,2", "1,3", "0,2", "1,3"]):
        (tmp_path / str(cpu)).write_text(siblings)
    monkeypatch.setattr(environment, "CORE", str(tmp_path / "{}"))
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1, 2}, raising=False)
    assert environment.physical_cores() == 2


def test_without_that_knowledge_psutil_counts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(environment, "CORE", str(tmp_path / "nowhere-{}"))
    monkeypatch.setattr("psutil.cpu_count", lambda logical: 6)
    assert environment.physical_cores() == 6
