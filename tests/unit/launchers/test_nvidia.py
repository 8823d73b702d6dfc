"""What the NVIDIA driver writes is read as it is meant."""

from __future__ import annotations

from pathlib import Path

import pytest

from accelerate.launchers import nvidia

OPEN = (
    "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  {}  Release Build  (builder@host)\nGCC version: 12.2.0\n"
)
CLOSED = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  {}  Tue Jan  2 2024\nGCC version: 12.2.0\n"


def gpus(folder: Path, *models: str) -> Path:
    """Write what the driver says about GPUs."""
    for minor, model in enumerate(models):
        (folder / "gpus" / f"0000:0{minor}:00.0").mkdir(parents=True)
        text = f"Model: \t\t NVIDIA {model}\nIRQ:   \t\t 5\nDevice Minor: \t {minor}\n"
        (folder / "gpus" / f"0000:0{minor}:00.0" / "information").write_text(text)
    return folder / "gpus"


def test_devices_are_those_that_can_be_opened(tmp_path: Path) -> None:
    listed = gpus(tmp_path, "H200", "H200", "H200")
    for minor in (0, 2):  # a container sees the driver's list, but not every device
        (tmp_path / f"nvidia{minor}").touch()
    assert nvidia.devices(listed, tmp_path) == 2


@pytest.mark.parametrize(
    ("model", "version", "works"),
    [
        ("H200", None, True),
        ("GeForce RTX 3090", CLOSED.format("470.1.2"), True),
        ("GeForce RTX 4090", CLOSED.format("535.104.05"), False),
        ("GeForce RTX 4090", OPEN.format("550.40.06"), False),
        ("GeForce RTX 4090", OPEN.format("550.40.07"), True),
        ("GeForce RTX 4090", OPEN.format("570.86.10"), True),
        ("GeForce RTX 4090", None, False),
    ],
)
def test_where_gpus_can_talk_to_each_other(tmp_path: Path, model: str, version: str | None, works: bool) -> None:
    gpus(tmp_path, model, model)
    if version is not None:
        (tmp_path / "version").write_text(version)
    assert nvidia.peer_to_peer_works(tmp_path) is works
