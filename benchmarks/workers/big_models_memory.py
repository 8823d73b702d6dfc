"""Watches how much memory another process takes, from outside, so that the process itself isn't slowed down.

python big_models_memory.py PROCESS: writes a line when it begins; when its input ends, the peaks of the process in
bytes: memory of its own, and pages of files and shared memory.
"""

from __future__ import annotations

import json
import select
import subprocess
import sys
from pathlib import Path

EVERY = 0.0005


def taken(process: str) -> tuple[int, int]:
    """Return the bytes of memory of its own, and of pages of files, that a process has resident."""
    status = dict(line.split(":", 1) for line in Path(f"/proc/{process}/status").read_text().splitlines())
    own, files, shared = (int(status[name].split()[0]) * 1024 for name in ("RssAnon", "RssFile", "RssShmem"))
    return own, files + shared


def watch(process: str) -> None:
    """Print the peaks when the input ends."""
    peaks = before = taken(process)
    print("ready", flush=True)
    while not select.select([sys.stdin], [], [], EVERY)[0]:
        peaks = tuple(map(max, peaks, taken(process)))
    print(json.dumps([peak - start for peak, start in zip(peaks, before, strict=True)]))


class Watch:
    """Watches this process within a block; `own` and `files` are what the peaks were above the start of it."""

    own = files = 0

    def __init__(self, process: int) -> None:
        self.process = process

    def __enter__(self) -> Watch:
        command = [sys.executable, __file__, str(self.process)]
        self._watcher = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._watcher.stdout.readline()
        return self

    def __exit__(self, *error: object) -> None:
        out, _ = self._watcher.communicate(timeout=30)
        self.own, self.files = json.loads(out)


if __name__ == "__main__":
    watch(sys.argv[1])
