"""How processes on one machine share its cores."""

from __future__ import annotations

import logging

import psutil
import pytest
import torch

from accelerate.cluster import threads
from accelerate.cluster.topology import topology_from


@pytest.fixture
def chosen(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """What torch was told; the machine has 8 physical cores."""
    seen: list[int] = []
    monkeypatch.setattr(torch, "set_num_threads", seen.append)
    monkeypatch.setattr(psutil, "cpu_count", lambda logical=True: 16 if logical else 8)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    return seen


@pytest.mark.parametrize(("rank", "lines"), [(0, 1), (1, 0)])
def test_each_process_gets_its_part_and_the_first_says_so(
    chosen: list[int], caplog: pytest.LogCaptureFixture, rank: int, lines: int
) -> None:
    with caplog.at_level(logging.WARNING, logger="accelerate.cluster.threads"):
        threads.share_cores(topology_from(rank, 2, rank, 2))
    assert chosen == [4]
    assert len(caplog.records) == lines


def test_what_was_said_stands(chosen: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    threads.share_cores(topology_from(0, 2, 0, 2))
    assert chosen == []


@pytest.mark.parametrize(("processes", "cores", "expected"), [(1, 8, 8), (2, 8, 4), (3, 8, 2), (16, 8, 1)])
def test_a_share_is_at_least_one(processes: int, cores: int, expected: int) -> None:
    assert threads.threads_per_process(processes, cores) == expected


@pytest.mark.parametrize(("physical", "logical", "expected"), [(8, 16, 8), (None, 16, 16), (None, None, 1)])
def test_cores_are_counted_as_far_as_the_machine_tells(
    monkeypatch: pytest.MonkeyPatch, physical: int | None, logical: int | None, expected: int
) -> None:
    monkeypatch.setattr(psutil, "cpu_count", lambda logical=True, seen=(physical, logical): seen[logical])
    assert threads.physical_cores() == expected
