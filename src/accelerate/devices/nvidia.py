"""What `nvidia-smi` knows without initialising CUDA: cards, driver, places on the bus, and broken peer-to-peer."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence

from accelerate.base import environ
from accelerate.base.messages import message
from accelerate.base.peer_to_peer import FIRST_SOUND_DRIVER, SWITCHES, is_affected, is_sound


def query(field: str) -> list[str]:
    """Return what `nvidia-smi` says of `field` for each GPU; nothing where it isn't installed or finds no driver."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return []
    command = [tool, f"--query-gpu={field}", "--format=csv,noheader"]
    answer = subprocess.run(command, capture_output=True, text=True, timeout=60)
    return [line.strip() for line in answer.stdout.splitlines() if line.strip()] if answer.returncode == 0 else []


def get_gpu_info() -> tuple[list[str], int]:
    """Return the names of the NVIDIA GPUs of the machine, and how many there are."""
    names = query("name")
    return names, len(names)


def get_driver_version() -> str:
    """Return the version of the NVIDIA driver, or "" where there is none."""
    return next(iter(query("driver_version")), "")


def address_of(uuid: str) -> str | None:
    """Return the address on the PCI bus of the GPU called `uuid`, as sysfs spells it, or None if it isn't known."""
    for line in query("uuid,pci.bus_id"):
        found, _, address = line.partition(",")
        if found.strip() == uuid:
            return address.strip().lower()[-len("0000:00:00.0") :]
    return None


def check_cuda_p2p_ib_support() -> bool:
    """Return whether the NVIDIA GPUs of this machine can be trusted to talk to each other directly."""
    names, _ = get_gpu_info()
    return not _is_affected(names) or is_sound(get_driver_version())


def check_peer_to_peer(names: Sequence[str]) -> None:
    """Refuse GPUs called `names` where direct transfers are broken and NCCL isn't told to avoid them.

    Raises:
        NotImplementedError: an affected series and driver, and not both switches of NCCL are set.
    """
    if not _is_affected(names) or all(environ.read(switch) for switch in SWITCHES):
        return
    driver = get_driver_version()
    if not is_sound(driver):
        raise NotImplementedError(
            message(
                given=f"{len(names)} GPUs ({names[0]}, ...) with driver {driver or 'of unknown version'}",
                why="the driver offers peer-to-peer transfers which this series doesn't have, so that NCCL hangs",
                allowed=f"driver {FIRST_SOUND_DRIVER} or later, or {' and '.join(f'{name}=1' for name in SWITCHES)}",
                do="set both variables, or start the script with `accelerate launch`, which sets them",
            )
        )


def _is_affected(names: Sequence[str]) -> bool:
    """Return whether several GPUs called `names` include one of the affected series."""
    return len(names) > 1 and is_affected(names)
