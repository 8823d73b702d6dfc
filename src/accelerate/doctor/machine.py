"""What this machine has: devices, memory, shared memory, and how fast the checkpoint folder is."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

from accelerate.doctor.finding import Finding, Visit, failure, ok, warning

GIGABYTE = 1024**3
LITTLE_MEMORY = 2 * GIGABYTE
LITTLE_SHARED_MEMORY = GIGABYTE
SHARED_MEMORY = Path("/dev/shm")
#: How much is written to see how fast that is, in bytes.
SAMPLE = 64 * 1024**2


def devices(visit: Visit) -> Iterator[Finding]:
    """Yield which accelerators a launch would use."""
    settings = visit.settings
    hardware = settings.hardware
    if settings.cpu_is_chosen:
        yield ok("the run is one on the CPU")
    elif hardware.is_cpu and settings.wants_accelerators:
        yield failure("the run wants accelerators, and this machine shows none", "check the driver, or run with --cpu")
    elif hardware.is_cpu:
        yield ok("no accelerator: the run will be one on the CPU")
    elif not hardware.peer_to_peer:
        yield warning(
            f"{hardware}, whose driver offers peer-to-peer transfers that these cards don't have",
            "update the driver to 550.40.07 or later; until then `accelerate launch` turns these transfers off",
        )
    else:
        yield ok(str(hardware))


def memory(visit: Visit) -> Iterator[Finding]:
    """Yield how much memory is free for each process."""
    import psutil

    free, processes = psutil.virtual_memory().available, visit.settings.processes_here
    text = f"{free / GIGABYTE:.1f} GB of memory free, for {processes} process{'es' if processes > 1 else ''}"
    if free / processes < LITTLE_MEMORY:
        yield warning(text, "start fewer processes, or end what else runs here")
    else:
        yield ok(text)


def shared_memory(visit: Visit) -> Iterator[Finding]:
    """Yield how much room there is for the batches that data workers hand over."""
    del visit
    if not SHARED_MEMORY.is_dir():
        return
    facts = os.statvfs(SHARED_MEMORY)
    free = facts.f_bavail * facts.f_frsize
    text = f"{free / GIGABYTE:.1f} GB of shared memory free, in {SHARED_MEMORY}"
    if free < LITTLE_SHARED_MEMORY:
        yield warning(text, "give the container more (`docker run --shm-size 8g`), or use fewer data workers")
    else:
        yield ok(text)


def storage(visit: Visit) -> Iterator[Finding]:
    """Yield how fast checkpoints would be written, and how much room there is for them."""
    folder = visit.folder
    try:
        speed = write_speed(folder)
        facts = os.statvfs(folder)
    except OSError as error:
        yield failure(f"{folder} can't be written to: {error.strerror}", "name another folder with --folder")
        return
    free = facts.f_bavail * facts.f_frsize
    text = f"{folder.absolute()}: {speed / 1e6:.0f} MB/s to disk, {free / GIGABYTE:.1f} GB free"
    if free < 10 * GIGABYTE:
        yield warning(text, "make room: a checkpoint is written beside the older ones before one of them is removed")
    else:
        yield ok(text)


def write_speed(folder: Path, size: int = SAMPLE) -> float:
    """Return how many bytes a second reach the disk.

    Raises:
        OSError: the folder can't be written to.
    """
    import tempfile

    block = os.urandom(1024**2)
    with tempfile.TemporaryFile(dir=folder) as file:
        began = time.monotonic()
        for _ in range(size // len(block)):
            file.write(block)
        file.flush()
        os.fsync(file.fileno())
        return size / (time.monotonic() - began)
