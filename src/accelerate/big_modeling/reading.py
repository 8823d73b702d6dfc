"""Read many tensors from files to where they belong, several at a time.

Threads of the system do the reading and the conversion, without holding up each other. A tensor that is converted or
moved to an accelerator passes, piece by piece, through a small buffer of its thread; all others are read into their
place. So no more memory is taken than what the tensors take that are read, and these buffers.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor

from accelerate.big_modeling.progress import Job, Progress
from accelerate.big_modeling.spans import Buffer

#: More readers than this do not make a disk faster.
MOST_READERS = 8


def read_all(jobs: Iterable[Job]) -> None:
    """Read tensors to where they go; the first error is raised when the others have ended.

    Args:
        jobs: what to read, in the order in which it lies in the files.
    """
    jobs = list(jobs)
    readers = min(MOST_READERS, os.cpu_count() or 1, len(jobs))
    if not jobs:
        return
    local = threading.local()

    def read(job: Job) -> None:
        file, name, target = job
        pinned = target.device.type == "cuda"
        buffers: dict[bool, Buffer] = local.__dict__.setdefault("buffers", {})
        if pinned not in buffers:
            buffers[pinned] = Buffer(pinned)
        file.read_into(name, target, buffers[pinned])

    with Progress(jobs) as progress, ThreadPoolExecutor(readers, thread_name_prefix="accelerate-read") as pool:
        for job, _ in zip(jobs, pool.map(read, jobs), strict=True):
            progress.done(job)
