"""What saving and loading a checkpoint costs, in time and in memory, beside doing it by hand."""

from __future__ import annotations

import statistics
import tempfile
from pathlib import Path

from benchmarks.harness import Pairs, Picture, Row, Side, Suite, run_worker

FILES = "`save_file` and `torch.save`, page cache"
READ = "`load_file`, `torch.load`, `load_state_dict`"
RAW = "raw `torch.distributed.checkpoint`"
SIZES = (0.1, 0.5, 1.0, 2.0, 4.0)  #: gigabytes of state in the picture

ROWS = {
    "save": Row("`save_state`, on the disk when it returns, 1 GB", FILES, "<= 1.1x", 1.1),
    "hold_up": Row("`save_state(blocking=False)`, 1 GB: the call", "one copy of the state in memory", "<= 1.2x", 1.2),
    "steps": Row(
        "60 steps of a small network while 1 GB is written", "the same steps, nothing written", "<= 1.05x", 1.05
    ),
    "load": Row("`load_state`, 1 GB, as at a restart", READ, "<= 0.3x", 0.3),
    "resume": Row("`load_state` and the first update after it", "the same by hand, and the update", "<= 1.0x", 1.0),
    "merge": Row("`merge-weights`, 0.33 GB", "`dcp.load` and `save_file`", "<= 1.05x", 1.05),
    "save_2": Row("FSDP2 `save_state` by shard, 2 processes, 0.5 GB", RAW, "<= 1.1x", 1.1),
    "load_2": Row("FSDP2 `load_state`, 2 processes", RAW, "<= 1.1x", 1.1),
    "save_4": Row("FSDP2 `save_state` by shard, 4 processes", RAW, "<= 1.1x", 1.1),
    "load_4": Row("FSDP2 `load_state`, 4 processes", RAW, "<= 1.1x", 1.1),
    "load_2_4": Row("FSDP2 `load_state`, saved by 2, loaded by 4", RAW, "<= 1.1x", 1.1),
    "load_4_1": Row("FSDP2 `load_state`, saved by 4, loaded by 1", RAW, "<= 1.1x", 1.1),
}


def measure(side: Side) -> dict[str, Pairs]:
    """Run each row once under one library, each in processes of its own.

    1.15.0 saves nothing in the background, and shards on accelerators only.
    """
    with tempfile.TemporaryDirectory(prefix="accelerate-bench-") as name:
        folder = Path(name)
        found = one_process(side, folder)
        found |= run_worker(side, "checkpoint_merge.py", "--blocks", "2")
        if side.name == "ours":
            found |= sharded(side, folder) | sizes(side, folder)
    return found


def one_process(side: Side, folder: Path) -> dict[str, Pairs]:
    """Measure the rows of one process."""

    def run(row: str, *arguments: str) -> dict[str, Pairs]:
        where = str(folder / ("one" if row in ("write", "load", "resume") else row))
        return run_worker(side, "checkpoint.py", "--row", row, "--folder", where, *arguments)

    found = run("save", "--blocks", "3")
    if side.name == "ours":
        found |= run("hold_up", "--blocks", "3") | run("steps", "--blocks", "3")
    run("write")
    for row in ("load", "resume"):
        found |= run(row)
        found[row].add(run(row, "--library-first")[row])
    return found


def sharded(side: Side, folder: Path) -> dict[str, Pairs]:
    """Measure the rows of sharded training, and write on some number of processes what another number loads."""

    def run(processes: int, where: str, *rows: str) -> dict[str, Pairs]:
        arguments = ["--gigabytes", "0.5", "--folder", str(folder / where), "--blocks", "3", "--rows", *rows]
        return run_worker(side, "checkpoint_sharded.py", *arguments, processes=processes)

    found = run(2, "two", "save=save_2", "load=load_2") | run(4, "four", "save=save_4", "load=load_4")
    return found | run(4, "two", "load=load_2_4") | run(1, "four", "load=load_4_1")


def sizes(side: Side, folder: Path) -> dict[str, Pairs]:
    """Measure how long saves of several sizes hold up training; for the picture, not for the table."""
    found: dict[str, Pairs] = {}
    for size in SIZES:
        for row, name in (("blocking", "blocking"), ("hold_up", "in the background")):
            arguments = ["--row", row, "--key", f"{name}@{size}", "--gigabytes", str(size), "--blocks", "2"]
            found |= run_worker(side, "checkpoint.py", *arguments, "--folder", str(folder / "sizes"))
    return found


def draw_sizes(result: dict, path: Path) -> None:
    """Draw how long a save holds up training, by the size of the state."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(7, 4.5), layout="constrained")
    measured = {key.partition("@")[::2]: by_side["ours"] for key, by_side in result["blocks"].items() if "@" in key}
    lines = {
        "save_state()": ("blocking", "library", "tab:blue"),
        "save_state(blocking=False)": ("in the background", "library", "tab:green"),
        "one copy in memory": ("in the background", "base", "black"),
    }
    for label, (row, who, color) in lines.items():
        points = sorted(
            (float(size), statistics.median(by[who])) for (name, size), by in measured.items() if name == row
        )
        style = "--" if who == "base" else "-"
        axes.plot(*zip(*points, strict=True), marker="o", label=label, color=color, linestyle=style)
    axes.set(xscale="log", yscale="log", xlabel="state in GB", ylabel="seconds that the loop is held up")
    axes.set_xticks(SIZES, [f"{size:g}" for size in SIZES])
    axes.set_title("What a save holds up")
    axes.legend(frameon=False)
    axes.grid(alpha=0.3)
    figure.savefig(path, dpi=150)
    plt.close(figure)


SUITE = Suite(
    name="checkpoint",
    title="Saving and loading a checkpoint",
    rows=ROWS,
    measure=measure,
    rounds=3,
    pictures=(Picture("sizes", "How long a save holds up training", draw_sizes),),
)
