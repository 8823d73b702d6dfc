"""Which accelerators a launched process would see, found without importing torch where that is possible.

Importing torch costs more than everything else that a launch does, so the question is answered from what is written
down: the build of torch that is installed (`torch/version.py`), the driver's folder in `/proc`, and the variable
that restricts a process to some devices. Torch itself is asked only when there is a sign of hardware that can't be
counted this way.
"""

from __future__ import annotations

import dataclasses
import importlib
import importlib.util
import os
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from accelerate.devices.specs import CPU, CUDA, MPS, SPECS, XLA, DeviceSpec, spec_for
from accelerate.launchers import nvidia

#: Files that are there when a machine may have an accelerator that only torch can count: WSL, AMD, Intel.
SIGNS = (Path("/dev/dxg"), Path("/dev/kfd"), Path("/dev/dri"))


@dataclass(frozen=True)
class Hardware:
    """The accelerators that a process on this machine sees.

    Args:
        kind: the torch device type; "cpu" when there is no accelerator.
        count: how many of them; 0 for "cpu".
        peer_to_peer: whether they can be trusted to talk to each other directly.
    """

    kind: str = CPU.name
    count: int = 0
    peer_to_peer: bool = True

    @property
    def spec(self) -> DeviceSpec:
        """The row of this kind of hardware."""
        return spec_for(self.kind)

    @property
    def is_cpu(self) -> bool:
        """Whether there is no accelerator."""
        return self.kind == CPU.name

    def __str__(self) -> str:
        return "no accelerator" if self.is_cpu else f"{self.count} {self.kind} device{'s' if self.count != 1 else ''}"


def find_hardware(environ: Mapping[str, str]) -> Hardware:
    """Return what processes started with `environ` will see."""
    if sys.platform == "darwin":
        return Hardware(MPS.name, 1) if os.uname().machine == "arm64" else Hardware()
    if any(_is_installed(spec.package) for spec in SPECS if spec.package and spec is not XLA):
        return ask_torch()
    built_for = torch_built_for()
    if "cuda" in built_for and nvidia.GPUS.is_dir():
        visible = environ.get(str(CUDA.visible))
        if _needs_driver(visible):
            return ask_torch()
        found = counted(CUDA.name, nvidia.devices(), visible)
        return dataclasses.replace(found, peer_to_peer=found.count < 2 or nvidia.peer_to_peer_works())
    if built_for and (sys.platform == "win32" or any(sign.exists() for sign in SIGNS)):
        return ask_torch()
    return Hardware()


def counted(kind: str, physical: int, visible: str | None) -> Hardware:
    """Return what is left of `physical` devices when `visible` (numbers with commas between) picks some."""
    number = physical if visible is None else min(physical, number_chosen(visible, physical))
    return Hardware(kind, number) if number else Hardware()


def number_chosen(visible: str, physical: int) -> int:
    """Return how many devices a visible-devices variable picks; as in CUDA, what is invalid ends the list."""
    chosen: list[str] = []
    for name in (part.strip() for part in visible.split(",")):
        if not name or (name.lstrip("-").isdigit() and not 0 <= int(name) < physical):
            break
        chosen.append(name)
    return len(set(chosen)) if len(set(chosen)) == len(chosen) else 0


def torch_built_for() -> frozenset[str]:
    """Return the toolkits (cuda, hip, xpu) that the installed torch was built for, read from its version file."""
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return frozenset()
    text = (Path(spec.origin).parent / "version.py").read_text(encoding="utf-8")
    return frozenset(re.findall(r"^(cuda|hip|xpu)\b[^=\n]*=\s*['\"]", text, flags=re.MULTILINE))


def ask_torch() -> Hardware:
    """Return what torch finds, with the packages of vendors that are installed."""
    import torch

    for spec in SPECS:
        if spec.package and spec is not XLA and _is_installed(spec.package):
            importlib.import_module(spec.package)
    accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    return Hardware(accelerator.type, torch.accelerator.device_count()) if accelerator else Hardware()


def _needs_driver(visible: str | None) -> bool:
    """Whether the choice of devices names slices of a GPU (MIG), whose number only the driver knows."""
    return visible is not None and "MIG" in visible


def _is_installed(package: str | None) -> bool:
    """Whether the first part of a dotted package name can be imported; nothing is imported to find out."""
    return package is not None and importlib.util.find_spec(package.partition(".")[0]) is not None
