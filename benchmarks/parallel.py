"""What training in parallel costs, in time and in memory, beside the same written by hand with torch's own API."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

from benchmarks.big_models import checkpoint, warm
from benchmarks.harness import Pairs, Picture, Row, Side, Suite, run_worker
from benchmarks.report import pairs_of

#: Every tensor of more than 64 KB has pages of its own and gives them back at once, so that what is resident is needed.
PAGES = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}
CLOSE = "<= 1.02x"

# row -> (line of the table, processes, blocks, steps in a block)
CASES: dict[str, tuple[Row, int, int, int]] = {
    "ddp": (Row("DDP, 2 processes", "`DistributedDataParallel`", CLOSE, 1.02), 2, 20, 2),
    "fsdp1": (Row("FSDP1, 2 processes", "`FullyShardedDataParallel`", CLOSE, 1.02), 2, 20, 2),
    "fsdp2": (Row("FSDP2, 2 processes", "`fully_shard`", CLOSE, 1.02), 2, 20, 2),
    "tp": (Row("tensor parallel, 2 processes", "`parallelize_module`", CLOSE, 1.02), 2, 20, 2),
    "cp": (Row("context parallel and FSDP2, 2 processes", "`context_parallel`, `fully_shard`", CLOSE, 1.02), 2, 14, 2),
    "pp": (Row("pipeline, 2 processes", "`PipelineStage`, `Schedule1F1B`", CLOSE, 1.02), 2, 20, 2),
    "hsdp": (Row("HSDP, 2 x 2 processes", "`fully_shard` on two axes", CLOSE, 1.02), 4, 12, 2),
    "fsdp2_tp": (Row("FSDP2 x TP, 2 x 2 processes", "`parallelize_module`, `fully_shard`", CLOSE, 1.02), 4, 12, 2),
}
START = Row(
    "building, sharding and loading 0.94 billion parameters, 2 processes", "`set_model_state_dict`", "<= 1.1x", 1.1
)

# what is held -> (case, processes)
HELD = {"DDP": ("ddp", 2), "FSDP2, 2 processes": ("fsdp2", 2), "FSDP2, 4 processes": ("fsdp2", 4)}
KINDS = ("parameters", "gradients", "AdamW", "resident, while training")

VERSIONS = {
    "base": "by hand: the first process has the network, `set_model_state_dict` hands it out",
    "library": "ours: the first process has it (`cpu_ram_efficient_loading`)",
    "everywhere": "ours: every process has it",
}


def measure(side: Side) -> dict[str, Pairs]:
    """Run each row once under one library, each in processes of its own.

    1.15.0 trains on several CPUs in replicas alone.
    """
    if side.name != "ours":
        return training(side, "ddp")
    found: dict[str, Pairs] = {}
    for row in CASES:
        found |= training(side, row)
    return found | starting(side) | held(side)


def training(side: Side, row: str) -> dict[str, Pairs]:
    """Time the steps of one row, and watch the memory of both versions in processes of their own."""
    _, processes, blocks, calls = CASES[row]
    options = ["--row", row, "--blocks", str(blocks), "--calls", str(calls)]
    found = run_worker(side, "parallel.py", *options, processes=processes)
    for version in ("base", "library"):
        options = ["--row", row, "--version", version]
        found[row].add(run_worker(side, "parallel_memory.py", *options, processes=processes, extra=PAGES)[row])
    return found


def starting(side: Side) -> dict[str, Pairs]:
    """Time how training begins, and watch the memory that it takes."""
    folder = checkpoint()
    warm(folder)
    options = ["--checkpoint", str(folder)]
    found = run_worker(side, "parallel_start.py", *options, "--blocks", "4", processes=2)
    for version in VERSIONS:
        found |= run_worker(side, "parallel_start.py", *options, "--version", version, processes=2, extra=PAGES)
    return found


def held(side: Side) -> dict[str, Pairs]:
    """Watch what a process holds of a larger network."""
    found: dict[str, Pairs] = {}
    for name, (case, processes) in HELD.items():
        pairs = found[f"held: {name}"] = Pairs()
        for version in ("base", "library"):
            options = ["--row", case, "--version", version, "--kinds"]
            pairs.add(run_worker(side, "parallel_memory.py", *options, processes=processes, extra=PAGES)[case])
    return found


def kinds_of(peaks: list[list[int]]) -> list[float]:
    """Return the means over all processes, in MB and in the order of `KINDS`."""
    means = [statistics.mean(values) / 1e6 for values in zip(*peaks, strict=True)]
    return [*means[2:], means[0]]


def held_table(result: dict[str, Any]) -> str:
    """Write what a process holds, by kind, as MB and as a part of what it holds in replicas."""
    lines = [f"| MB per process, of what it is in replicas | {' | '.join(KINDS)} |", "|---" * (len(KINDS) + 1) + "|"]
    for version, of in (("base", "by hand"), ("library", "ours")):
        whole: list[float] = []
        for name in HELD:
            values = kinds_of(getattr(pairs_of(result, f"held: {name}")["ours"], f"{version}_memory"))
            whole = whole or values
            cells = [f"{value:.0f} ({value / all_of_it:.2f})" for value, all_of_it in zip(values, whole, strict=True)]
            lines.append(f"| {name}, {of} | {' | '.join(cells)} |")
    return "\n".join(lines)


def begin_table(result: dict[str, Any]) -> str:
    """Write the peaks of each process while a network is sharded."""
    lines = ["| peak while a network of 1.06 GB is sharded, MB | process 0 | process 1 |", "|---|---|---|"]
    for version, name in VERSIONS.items():
        pairs = pairs_of(result, f"begin {version}")["ours"]
        cells = [f"{own / 1e6:.0f}" for own, _ in pairs.base_memory or pairs.library_memory]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def draw_held(result: dict[str, Any], path: Path) -> None:
    """Draw what a process holds of each kind, in replicas and in shards."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(8, 4), layout="constrained")
    colors = ("black", "tab:blue", "tab:green")
    for number, (name, color) in enumerate(zip(HELD, colors, strict=True)):
        values = kinds_of(pairs_of(result, f"held: {name}")["ours"].library_memory)
        bars = axes.bar(
            [place + 0.27 * (number - 1) for place in range(len(KINDS))], values, 0.25, label=name, color=color
        )
        axes.bar_label(bars, fmt="%.0f", fontsize=8)
    axes.set_xticks(range(len(KINDS)), KINDS)
    axes.set(ylabel="MB per process", title="What a process holds of 65 million parameters in fp32")
    axes.legend(frameon=False)
    figure.savefig(path, dpi=150)
    plt.close(figure)


SUITE = Suite(
    name="parallel",
    title="Training in parallel",
    rows={row: line for row, (line, *_) in CASES.items()} | {"start": START},
    measure=measure,
    rounds=2,
    pictures=(Picture("memory", "What a process holds", draw_held),),
    tables=(held_table, begin_table),
)
