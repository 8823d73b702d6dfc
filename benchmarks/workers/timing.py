"""Times two functions in turn. Imported by the workers, under either library; needs nothing but Python."""

from __future__ import annotations

import argparse
import gc
import json
import time
from collections.abc import Callable
from pathlib import Path


def paired_blocks(
    base: Callable[[], object], library: Callable[[], object], *, blocks: int, calls: int, warm_up: int = 30
) -> dict[str, list[float]]:
    """Return the seconds per call of both functions, block by block, the two blocks of a pair next to each other."""
    for _ in range(warm_up):
        base()
        library()
    found: dict[str, list[float]] = {"base": [], "library": []}
    gc.collect()
    gc.disable()
    for number in range(blocks):
        pair = [("base", base), ("library", library)]
        for name, function in pair if number % 2 == 0 else reversed(pair):
            started = time.perf_counter()
            for _ in range(calls):
                function()
            found[name].append((time.perf_counter() - started) / calls)
        gc.collect()
    gc.enable()
    return found


def worker_parser() -> argparse.ArgumentParser:
    """Return a parser with what the harness passes to every worker."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--result", type=Path, required=True)
    parser.add_argument("--blocks", type=int, default=30)
    parser.add_argument("--calls", type=int, default=60)
    return parser


def write(path: Path, rows: dict[str, dict[str, list[float]]]) -> None:
    """Hand the measurements to the harness."""
    path.write_text(json.dumps(rows))
