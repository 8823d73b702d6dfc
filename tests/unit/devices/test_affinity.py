"""Binding a process to the cores next to its device, on a fake of sysfs."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import pytest

from accelerate.devices import affinity
from accelerate.devices.device import Device


@pytest.fixture
def sysfs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two NUMA nodes; the device of rank 1 hangs on the second."""
    for node, cores in enumerate(["0-3,8", "4-7,9-10"]):
        folder = tmp_path / f"devices/system/node/node{node}"
        folder.mkdir(parents=True)
        (folder / "cpulist").write_text(f"{cores}\n")
    for address, node in [("0000:3b:00.0", 0), ("0000:af:00.0", 1), ("0000:5e:00.0", -1)]:
        folder = tmp_path / "bus/pci/devices" / address
        folder.mkdir(parents=True)
        (folder / "numa_node").write_text(f"{node}\n")
    monkeypatch.setattr(affinity, "SYSFS", tmp_path)
    affinity.set_numa_affinity.cache_clear()
    return tmp_path


@pytest.fixture
def bound(monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
    """What the process would have been bound to."""
    seen: list[list[int]] = []
    monkeypatch.setattr(affinity, "bind", seen.append)
    return seen


@pytest.mark.parametrize(
    ("text", "expected"),
    [("0-3,8,10-11\n", [0, 1, 2, 3, 8, 10, 11]), ("5", [5]), ("\n", []), ("0-1,4-5", [0, 1, 4, 5])],
)
def test_lists_of_cores_are_read(text: str, expected: list[int]) -> None:
    assert affinity.parse_cpu_list(text) == expected


@pytest.mark.parametrize(
    ("rank", "address", "expected"),
    [
        (0, "0000:3b:00.0", [0, 1, 2, 3, 8]),
        (1, "0000:af:00.0", [4, 5, 6, 7, 9, 10]),
        (0, "0000:5e:00.0", [0, 1, 2, 3, 8]),
    ],
    ids=["first node", "second node", "a machine with one node says -1"],
)
def test_a_rank_is_bound_next_to_its_device(
    machine, sysfs: Path, bound: list, monkeypatch: pytest.MonkeyPatch, rank: int, address: str, expected: list[int]
) -> None:
    machine.add("xpu")
    monkeypatch.setattr(Device, "pci_address", lambda self: address if self.index == rank else None)
    affinity.set_numa_affinity(rank)
    affinity.set_numa_affinity(rank)  # once is enough
    affinity.override_numa_affinity(rank)
    assert bound == [expected, expected]


def test_a_device_that_hides_its_place_leaves_the_process_alone_and_says_so(machine, sysfs: Path, bound: list) -> None:
    machine.add("xpu")
    with pytest.warns(UserWarning, match="CPU affinity is not set"):
        affinity.set_numa_affinity(0)
    assert bound == []


def test_the_cpu_is_next_to_itself(machine, sysfs: Path, bound: list) -> None:
    affinity.set_numa_affinity(0)
    assert bound == []


@pytest.mark.parametrize(
    ("verbose", "debug", "lines"), [(True, "0", 1), (False, "1", 0), (None, "1", 1), (None, "0", 0)]
)
def test_the_cores_are_logged_when_asked_or_debugging(
    machine, sysfs: Path, bound: list, monkeypatch, caplog, verbose: bool | None, debug: str, lines: int
) -> None:
    machine.add("xpu")
    monkeypatch.setenv("ACCELERATE_DEBUG_MODE", debug)
    monkeypatch.setattr(Device, "pci_address", lambda self: "0000:3b:00.0")
    with caplog.at_level(logging.INFO, logger="accelerate.devices.affinity"):
        affinity.override_numa_affinity(0, verbose)
    assert len(caplog.records) == lines


def test_every_thread_is_bound_to_the_cores_it_may_use(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[int, list[int]]] = []
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {1, 2, 3})
    monkeypatch.setattr(os, "sched_setaffinity", lambda thread, cores: seen.append((thread, cores)))
    affinity.bind([2, 3, 4])
    assert os.getpid() in [thread for thread, _ in seen]
    assert all(cores == [2, 3] for _, cores in seen)
