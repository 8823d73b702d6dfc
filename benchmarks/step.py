"""What a training step costs, beside the same step in plain torch."""

from __future__ import annotations

from benchmarks.harness import Pairs, Row, Side, Suite, run_worker

# row -> (line of the table, arguments of the worker, processes)
CASES: dict[str, tuple[Row, list[str], int]] = {
    "plain": (Row("one step, fp32", "plain torch", "<= 1.03x"), [], 1),
    "accumulate_1": (
        Row("one step inside `accumulate`, window of 1", "plain torch", "<= 1.05x"),
        ["--accumulate"],
        1,
    ),
    "accumulate_4": (
        Row("one micro-batch inside `accumulate`, window of 4", "plain torch", "<= 1.05x"),
        ["--accumulate", "--steps", "4"],
        1,
    ),
    "bf16": (Row("one step, bf16 autocast", "plain torch with autocast", "<= 1.04x"), ["--bf16"], 1),
    "ddp": (Row("one DDP step, 2 gloo processes", "plain DDP", "<= 1.03x"), [], 2),
    "ddp_accumulate_4": (
        Row("one DDP micro-batch, window of 4, 2 gloo processes", "plain DDP with `no_sync`", "<= 1.03x"),
        ["--accumulate", "--steps", "4"],
        2,
    ),
}


def measure(side: Side) -> dict[str, Pairs]:
    """Run each row once under one library, each in processes of its own."""
    found: dict[str, Pairs] = {}
    for row, (_, arguments, processes) in CASES.items():
        found |= run_worker(side, "step.py", "--row", row, *arguments, processes=processes)
    return found


SUITE = Suite(
    name="step",
    title="One training step of a small network",
    rows={row: line for row, (line, _, _) in CASES.items()},
    measure=measure,
    rounds=5,
)
