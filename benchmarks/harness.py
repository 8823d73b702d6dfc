"""Runs the same work under this library and under accelerate 1.15.0, and says how both compare with plain torch.

A machine is never quiet. So nothing is compared that wasn't measured side by side: a worker times short blocks of the
base and of the library in turn, in one process, and the two libraries take turns too, round after round. What is
reported is the median of the ratios of neighbouring blocks, with the range of their middle half.

accelerate 1.15.0 lives in an environment of its own; ACCELERATE_BENCH_PEER names its interpreter (`make bench-env`
builds one). Without it only this library is measured, and the tables say so.
"""

from __future__ import annotations

import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Literal

HERE = Path(__file__).parent
ROOT = HERE.parent
RESULTS = HERE / "results"
WORKERS = HERE / "workers"


@dataclass(frozen=True)
class Side:
    """One of the two libraries: a name for the tables and the interpreter that has it installed."""

    name: str
    python: str

    @property
    def scripts(self) -> Path:
        """Return the folder with the commands that were installed beside the interpreter."""
        return Path(self.python).parent


@dataclass(frozen=True)
class Row:
    """One line of a table: the work, what it is compared with, and the goal; as a number too, where it is a ratio."""

    name: str
    base: str
    goal: str
    limit: float | None = None


@dataclass
class Pairs:
    """Times in seconds of neighbouring blocks: the base, and the library right beside it.

    Where memory was watched, also its peaks in bytes above what was there before: of the process's own, and of pages of
    files.
    """

    base: list[float] = field(default_factory=list)
    library: list[float] = field(default_factory=list)
    base_memory: list[list[int]] = field(default_factory=list)
    library_memory: list[list[int]] = field(default_factory=list)

    def add(self, other: Pairs) -> None:
        """Append the blocks of another run."""
        self.base += other.base
        self.library += other.library
        self.base_memory += other.base_memory
        self.library_memory += other.library_memory

    def ratios(self) -> list[float]:
        """Return library / base, block by block."""
        return [ours / base for base, ours in zip(self.base, self.library, strict=True)]

    def extra(self) -> float:
        """Return the median of library - base in seconds; the library's time where there is no base."""
        if not self.base:
            return statistics.median(self.library)
        return statistics.median(ours - base for base, ours in zip(self.base, self.library, strict=True))


def sides() -> list[Side]:
    """Return this library, and accelerate 1.15.0 where an environment with it is named."""
    peer = os.environ.get("ACCELERATE_BENCH_PEER")
    found = [Side("ours", sys.executable)]
    return [*found, Side("1.15.0", str(Path(peer).absolute()))] if peer else found


def environment(**extra: str) -> dict[str, str]:
    """Return the environment that all measured processes share: one thread each, no settings of the person's."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("ACCELERATE_")}
    home = str(Path(tempfile.gettempdir()) / "accelerate-bench-home")
    return kept | {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "HF_HOME": home} | extra


def run_worker(
    side: Side,
    script: str,
    *arguments: str,
    processes: int = 1,
    timeout: float = 600,
    extra: Mapping[str, str] | None = None,
) -> dict[str, Pairs]:
    """Run a worker under one library and return what it measured: row -> pairs of blocks.

    The worker gets `--result FILE` and writes `{row: {"base": [...], "library": [...]}}` to it, on rank 0 only; `extra`
    is added to its environment.
    """
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", str(processes)]
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "result.json"
        command = [side.python, *(launcher if processes > 1 else []), str(WORKERS / script), *arguments]
        done = subprocess.run(
            [*command, "--result", str(result)],
            env=environment(**extra or {}),
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
        if done.returncode != 0:
            raise RuntimeError(f"{side.name}: {' '.join(command)} failed\n{done.stderr[-4000:]}")
        return {row: Pairs(**blocks) for row, blocks in json.loads(result.read_text()).items()}


def time_command(command: list[str], *, timeout: float = 300, **extra: str) -> float:
    """Return the seconds that a command takes from start to end."""
    started = time.perf_counter()
    done = subprocess.run(
        command, env=environment(**extra), capture_output=True, text=True, timeout=timeout, check=False
    )
    seconds = time.perf_counter() - started
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)} failed\n{done.stderr[-4000:]}")
    return seconds


def alternate(rounds: int, measure: Callable[[Side], dict[str, Pairs]]) -> dict[str, dict[str, Pairs]]:
    """Measure every side in turn, `rounds` times: row -> side -> pairs. The order of the sides turns each round."""
    found: dict[str, dict[str, Pairs]] = {}
    order = sides()
    for number in range(rounds):
        for side in order if number % 2 == 0 else reversed(order):
            for row, pairs in measure(side).items():
                found.setdefault(row, {}).setdefault(side.name, Pairs()).add(pairs)
        print(f"  round {number + 1} of {rounds}", file=sys.stderr)
    return found


def machine() -> dict[str, str | int | float]:
    """Return what a reader needs to judge the figures: processor, cores, memory, load, versions and commit."""
    cpu = next(
        (line.split(":")[1].strip() for line in _lines("/proc/cpuinfo") if line.startswith("model name")),
        platform.processor() or platform.machine(),
    )
    memory = next((int(line.split()[1]) for line in _lines("/proc/meminfo") if line.startswith("MemTotal")), 0)
    git = ["git", "-C", str(ROOT)]
    commit = subprocess.run([*git, "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    changed = subprocess.run([*git, "status", "--porcelain", "--", "src"], capture_output=True, text=True, check=False)
    import torch

    return {
        "date": time.strftime("%Y-%m-%d"),
        "commit": commit.stdout.strip() + (" with changes" if changed.stdout.strip() else ""),
        "processor": cpu,
        "cores": os.cpu_count() or 0,
        "memory_gib": round(memory / 2**20),
        "load_at_end": round(os.getloadavg()[0], 2),
        "system": platform.platform(terse=True),
        "python": platform.python_version(),
        "torch": torch.__version__,
    }


def _lines(path: str) -> Iterable[str]:
    try:
        return Path(path).read_text().splitlines()
    except OSError:
        return []


@dataclass(frozen=True)
class Picture:
    """One more picture of a suite: the end of its file's name, what it shows, and the function that draws it."""

    name: str
    title: str
    draw: Callable[[dict, Path], None]


@dataclass(frozen=True)
class Suite:
    """A table: its rows in order, the function that measures them, and whether it shows ratios or whole times.

    There may be more pictures, and more tables that are made of what was measured.
    """

    name: str
    title: str
    rows: dict[str, Row]
    measure: Callable[[Side], dict[str, Pairs]]
    rounds: int
    shows: Literal["ratio", "time"] = "ratio"
    pictures: tuple[Picture, ...] = ()
    tables: tuple[Callable[[dict], str], ...] = ()

    def run(self, rounds: int | None = None) -> dict:
        """Measure, and return what was measured as plain data."""
        print(f"{self.title}", file=sys.stderr)
        found = alternate(rounds or self.rounds, self.measure)
        measured = {row: {side: asdict(pairs) for side, pairs in by_side.items()} for row, by_side in found.items()}
        rows = {row: asdict(fact) for row, fact in self.rows.items()}
        return {
            "suite": self.name,
            "title": self.title,
            "shows": self.shows,
            "machine": machine(),
            "rows": rows,
            "blocks": measured,
        }
