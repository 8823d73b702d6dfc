"""What talking between processes costs, beside the one raw collective that would do."""

from __future__ import annotations

from benchmarks.harness import Pairs, Row, Side, Suite, run_worker

ROWS = {
    "gather_one": Row("`gather` of one tensor (16 KiB)", "the raw all-gather", "<= 1.1x"),
    "reduce_one": Row("`reduce` of one tensor (16 KiB)", "copy and raw all-reduce", "<= 1.1x"),
    "broadcast_one": Row("`broadcast` of one tensor (16 KiB)", "the raw broadcast", "<= 1.1x"),
    "gather_dict": Row("`gather` of a dict of 10 small tensors", "ONE raw all-gather of the same bytes", "<= 1.5x"),
    "broadcast_dict": Row(
        "`broadcast` of a dict of 10 small tensors", "ONE raw broadcast of the same bytes", "<= 1.5x"
    ),
    "gather_mixed": Row(
        "`gather` of a dict of 10 small tensors of 3 dtypes", "ONE raw all-gather of the same bytes", "<= 1.5x"
    ),
    "reduce_dict": Row(
        "`reduce` of a dict of 10 small tensors", "copy and ONE raw all-reduce of the same bytes", "<= 1.5x"
    ),
    "pad_dict": Row("`pad_across_processes` of a dict of 10 tensors", "one gather of sizes, and padding", "<= 1.5x"),
}


def measure(side: Side) -> dict[str, Pairs]:
    """Run all rows once under one library, in two gloo processes."""
    return run_worker(side, "collectives.py", processes=2)


SUITE = Suite(
    name="collectives",
    title="Talking between two gloo processes",
    rows=ROWS,
    measure=measure,
    rounds=5,
)
