"""Consumer NVIDIA cards whose older drivers promise peer-to-peer transfers that then hang or corrupt data.

The RTX 40 series has no peer-to-peer support; drivers before 550.40.07 report it nevertheless, and NCCL believes them.
"""

from __future__ import annotations

import subprocess
from collections.abc import Sequence

from packaging.version import InvalidVersion, Version

from accelerate.base import environ
from accelerate.base.messages import message

AFFECTED = ("RTX 40",)
FIRST_SOUND_DRIVER = Version("550.40.07")
SWITCHES = ("NCCL_P2P_DISABLE", "NCCL_IB_DISABLE")


def query_nvidia_smi(field: str) -> list[str]:
    """Return what `nvidia-smi` says of `field` for each GPU, without initialising CUDA.

    Raises:
        FileNotFoundError: the tool isn't installed.
    """
    command = ["nvidia-smi", f"--query-gpu={field}", "--format=csv,noheader"]
    answer = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout
    return [line.strip() for line in answer.splitlines() if line.strip()]


def peer_to_peer_is_sound(names: Sequence[str], driver: str) -> bool:
    """Return whether several GPUs called `names`, under `driver`, can be trusted to talk to each other directly."""
    if len(names) < 2 or not any(affected in name for affected in AFFECTED for name in names):
        return True
    try:
        return Version(driver) >= FIRST_SOUND_DRIVER
    except InvalidVersion:
        return False


def check_peer_to_peer(names: Sequence[str]) -> None:
    """Refuse GPUs called `names` where direct transfers are broken and NCCL isn't told to avoid them.

    Raises:
        NotImplementedError: a card of an affected series, an affected driver, and neither switch of NCCL set.
    """
    if peer_to_peer_is_sound(names, driver="0") or all(environ.read(switch) for switch in SWITCHES):
        return
    driver = (query_nvidia_smi("driver_version") or [""])[0]
    if not peer_to_peer_is_sound(names, driver):
        raise NotImplementedError(
            message(
                given=f"{len(names)} GPUs ({names[0]}, ...) with driver {driver}",
                why="the driver offers peer-to-peer transfers which this series doesn't have, so that NCCL hangs",
                allowed=f"driver {FIRST_SOUND_DRIVER} or later, or {' and '.join(f'{name}=1' for name in SWITCHES)}",
                do="set both variables, or start the script with `accelerate launch`, which sets them",
            )
        )
