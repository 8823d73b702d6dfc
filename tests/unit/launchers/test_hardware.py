"""Accelerators are counted from files and variables; torch is asked only at a sign of hardware."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from accelerate.launchers import hardware
from accelerate.launchers.hardware import Hardware, counted, find_hardware, number_chosen


@pytest.mark.parametrize(
    ("visible", "number"),
    [
        ("0,1,2,3", 4),
        ("2", 1),
        (" 1 , 3 ", 2),
        ("", 0),
        ("-1", 0),
        ("0,-1,1", 1),  # what is invalid ends the list
        ("0,9,1", 1),
        ("1,1", 0),  # CUDA takes no list that names a device twice
        ("GPU-8932f937,GPU-12345678", 2),
    ],
)
def test_a_variable_chooses_devices(visible: str, number: int) -> None:
    assert number_chosen(visible, 4) == number


@pytest.mark.parametrize(
    ("physical", "visible", "found"),
    [
        (4, None, Hardware("cuda", 4)),
        (4, "0,1", Hardware("cuda", 2)),
        (4, "", Hardware()),
        (0, None, Hardware()),
        (1, "GPU-a,GPU-b", Hardware("cuda", 1)),
    ],
)
def test_what_is_left_of_the_devices(physical: int, visible: str | None, found: Hardware) -> None:
    assert counted("cuda", physical, visible) == found


def machine(
    monkeypatch: pytest.MonkeyPatch, *, built_for: str = "", packages: str = "", nvidia: int = 0, signs: bool = False
):
    """Make this machine look like another."""
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(hardware, "torch_built_for", lambda: frozenset(built_for.split()))
    monkeypatch.setattr(hardware, "_is_installed", lambda package: package in packages.split())
    monkeypatch.setattr(hardware.nvidia, "GPUS", Path("/" if nvidia else "/nowhere"))
    monkeypatch.setattr(hardware.nvidia, "devices", lambda: nvidia)
    monkeypatch.setattr(hardware.nvidia, "peer_to_peer_works", lambda: False)
    monkeypatch.setattr(hardware, "SIGNS", (Path("/"),) if signs else ())
    monkeypatch.setattr(hardware, "ask_torch", lambda: Hardware("asked", 7))


@pytest.mark.parametrize(
    ("facts", "environ", "found"),
    [
        ({}, {}, Hardware()),
        ({"nvidia": 4}, {}, Hardware()),  # torch was built without CUDA: it will see none of them
        ({"built_for": "cuda", "nvidia": 4}, {}, Hardware("cuda", 4, peer_to_peer=False)),
        ({"built_for": "cuda", "nvidia": 4}, {"CUDA_VISIBLE_DEVICES": "1"}, Hardware("cuda", 1)),
        ({"built_for": "cuda", "nvidia": 4}, {"CUDA_VISIBLE_DEVICES": "MIG-1"}, Hardware("asked", 7)),
        ({"built_for": "cuda"}, {}, Hardware()),
        ({"built_for": "cuda", "signs": True}, {}, Hardware("asked", 7)),
        ({"built_for": "hip", "signs": True}, {}, Hardware("asked", 7)),
        ({"packages": "torch_npu"}, {}, Hardware("asked", 7)),
        ({"packages": "torch_xla"}, {}, Hardware()),
    ],
)
def test_hardware_is_found(
    monkeypatch: pytest.MonkeyPatch, facts: dict, environ: dict[str, str], found: Hardware
) -> None:
    machine(monkeypatch, **facts)
    assert find_hardware(environ) == found


@pytest.mark.parametrize(
    ("text", "built_for"),
    [
        ("cuda: Optional[str] = None\nhip: Optional[str] = None\n", set()),
        ("cuda: Optional[str] = '12.8'\nhip: Optional[str] = None\n", {"cuda"}),
        ("cuda = None\nhip = '6.2'\nxpu: Optional[str] = None\n", {"hip"}),
        ("cuda = None\nxpu = '20250101'\n", {"xpu"}),
    ],
)
def test_what_torch_was_built_for_is_read_from_its_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, text: str, built_for: set[str]
) -> None:
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("raise AssertionError('torch is imported')")
    (tmp_path / "torch" / "version.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    assert hardware.torch_built_for() == built_for


def test_hardware_speaks() -> None:
    assert [str(one) for one in (Hardware(), Hardware("cuda", 1), Hardware("npu", 8))] == [
        "no accelerator",
        "1 cuda device",
        "8 npu devices",
    ]
    assert Hardware("npu", 8).spec.visible == "ASCEND_RT_VISIBLE_DEVICES"
