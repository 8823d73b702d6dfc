"""What the NVIDIA driver writes about the GPUs of a machine, read without starting a program or initialising CUDA."""

from __future__ import annotations

import re
from pathlib import Path

from accelerate.base.peer_to_peer import is_affected, is_sound

DRIVER = Path("/proc/driver/nvidia")
GPUS = DRIVER / "gpus"


def devices(gpus: Path = GPUS, files: Path = Path("/dev")) -> int:
    """Return how many GPUs the driver lists and the file system lets this process open."""
    return sum((files / f"nvidia{minor}").exists() for minor in facts(gpus, "Device Minor"))


def peer_to_peer_works(driver: Path = DRIVER) -> bool:
    """Return whether the GPUs of this machine can be trusted to talk to each other directly."""
    if not is_affected(facts(driver / "gpus", "Model")):
        return True
    text = (driver / "version").read_text(errors="replace") if (driver / "version").is_file() else ""
    found = re.search(r"Kernel Module.*?\s(\d+(?:\.\d+)+)", text)
    return found is not None and is_sound(found[1])


def facts(gpus: Path, name: str) -> list[str]:
    """Return what the driver says of `name` for each GPU that says it."""
    texts = [file.read_text(errors="replace") for file in sorted(gpus.glob("*/information"))]
    found = [re.search(rf"^{name}:\s*(.+)$", text, flags=re.MULTILINE) for text in texts]
    return [match[1].strip() for match in found if match is not None]
