"""What a prepared data loader costs per batch, beside the same reading by hand; and how reading scales."""

from __future__ import annotations

import statistics
from pathlib import Path

from benchmarks.harness import Pairs, Picture, Row, Side, Suite, run_worker

PLAIN = "plain `DataLoader`"
HALF = "plain `DataLoader` over its half"
TAIL = "`DataLoader` over the tail"
RAW = "reading, and one raw broadcast per batch"

ROWS = {
    "map": Row("map-style, 1 process, per batch", PLAIN, "<= 1.02x", 1.02),
    "iterable": Row("iterable, 1 process, per batch", PLAIN, "<= 1.02x", 1.02),
    "nested": Row("nested dict of 7 tensors, 1 process", PLAIN, "<= 1.05x", 1.05),
    "nested_two": Row("nested dict of 7 tensors, 2 processes", "plain, `DistributedSampler`", "<= 1.1x", 1.1),
    "shuffled_two": Row("shuffled, 2 processes", "plain, `DistributedSampler`", "<= 1.1x", 1.1),
    "iterable_two": Row("iterable in 2 shards, 2 processes", HALF, "<= 1.1x", 1.1),
    "whole_two": Row("iterable that can't be divided, 2 processes", HALF, "none: both read all of it"),
    "stateful": Row("stateful, 1 process, per batch", "plain `StatefulDataLoader`", "<= 1.1x", 1.1),
    "skip_5": Row("`skip_first_batches(5)` of 10, 5 batches", TAIL, "<= 1.2x", 1.2),
    "skip_395": Row("`skip_first_batches(395)` of 400, 5 batches", TAIL, "<= 1.2x", 1.2),
    "skip_3995": Row("`skip_first_batches(3995)` of 4000, 5 batches", TAIL, "<= 1.2x", 1.2),
    "dispatched": Row("dispatched, flat, 2 processes", RAW, "<= 1.3x", 1.3),
    "dispatched_nested": Row("dispatched, nested dict of 7 tensors, 2 processes", RAW, "<= 1.5x", 1.5),
}
PROCESSES = (1, 2, 3, 4)
WORKERS = (0, 1, 2, 4)


def measure(side: Side) -> dict[str, Pairs]:
    """Run all rows, and all numbers of processes and workers, once under one library."""
    found = run_worker(side, "data.py", "--blocks", "20")
    found |= run_worker(side, "data.py", "--blocks", "12", processes=2)
    for processes in PROCESSES:
        arguments = ["--blocks", "2", "--workers", *map(str, WORKERS)]
        found |= run_worker(side, "data_scale.py", *arguments, processes=processes)
    return found


def draw_scaling(result: dict, path: Path) -> None:
    """Draw samples per second, a panel per number of workers, a group of bars per number of processes."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, panels = plt.subplots(1, len(WORKERS), figsize=(12, 3.6), sharey=True, layout="constrained")
    colors = {"plain torch, DistributedSampler": "lightgray", "1.15.0": "tab:gray", "ours": "tab:blue"}
    for panel, workers in zip(panels, WORKERS, strict=True):
        for number, (name, color) in enumerate(colors.items()):
            found = {processes: samples_per_second(result, processes, workers, name) for processes in PROCESSES}
            bars = {processes + 0.27 * (number - 1): value for processes, value in found.items() if value}
            panel.bar(list(bars), list(bars.values()), 0.25, color=color, label=name)
        panel.set(title=f"{workers} worker{'s' * (workers != 1)} per process", xlabel="processes", xticks=PROCESSES)
    panels[0].set_ylabel("samples/s, all processes")
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=3, frameon=False)
    figure.savefig(path, dpi=150)
    plt.close(figure)


def samples_per_second(result: dict, processes: int, workers: int, name: str) -> float | None:
    """Return the median over all blocks; None where nothing was measured. The base was measured beside each library."""
    by_side = result["blocks"].get(f"scale_{processes}_{workers}", {})
    if name in ("ours", "1.15.0"):
        times = by_side.get(name, {}).get("library", [])
    else:
        times = [seconds for blocks in by_side.values() for seconds in blocks["base"]]
    return 1 / statistics.median(times) if times else None


SUITE = Suite(
    name="data",
    title="Prepared data loaders",
    rows=ROWS,
    measure=measure,
    rounds=3,
    pictures=(Picture("scaling", "Samples per second by processes and workers", draw_scaling),),
)
