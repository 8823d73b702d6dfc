"""How good plans are: those of both libraries for the models and budgets in `workers/planner.py`.

`python -m benchmarks.planner` writes `results/plans.json`, prints the plans that differ, and fails if one of ours is
worse. A plan is worse than another if it leaves out part of the model, goes over a budget by more, reads more from the
disk, leaves more off the accelerators, or changes the device more often, in this order. Both environments need
transformers, which builds the models, on meta. How long planning takes is in `big_models`.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.harness import RESULTS, WORKERS, Side, environment, machine, sides

#: What is bad about a plan, from the worst; see `judge` in the worker.
FAULTS = ("uncovered", "overflow", "disk", "offloaded", "crossings")

TIMEOUT = 900


def plans(side: Side) -> dict[str, dict]:
    """Return what is bad about every plan of one library: "model, budget" -> figures."""
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "result.json"
        command = [side.python, str(WORKERS / "planner.py"), "--result", str(result)]
        subprocess.run(command, env=environment(), capture_output=True, timeout=TIMEOUT, check=True)
        found: dict[str, dict] = json.loads(result.read_text())
        return found


def is_worse(one: dict, other: dict) -> bool:
    """Tell whether one plan is worse than another; none at all is the worst."""
    if "error" in one or "error" in other:
        return "error" in one and "error" not in other
    return [one[fault] for fault in FAULTS] > [other[fault] for fault in FAULTS]


def table(found: dict[str, dict[str, dict]]) -> str:
    """Return the plans that differ, as a table in Markdown: case -> side -> figures."""
    lines = ["| model, budget | " + " | ".join(FAULTS) + " |", "|---" * (len(FAULTS) + 1) + "|"]
    for case, by_side in found.items():
        if by_side["ours"] != by_side["1.15.0"]:
            cells = [" / ".join(_cell(figures, fault) for figures in by_side.values()) for fault in FAULTS]
            lines.append(f"| {case} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _cell(figures: dict, fault: str) -> str:
    if "error" in figures:
        return "fails"
    in_bytes = fault in ("overflow", "disk", "offloaded")
    return f"{figures[fault] / 2**20:.2f} MiB" if in_bytes else str(figures[fault])


def main() -> int:
    """Compare the plans, write what was found, and return how many of ours are worse."""
    by_side = {side.name: plans(side) for side in sides()}
    if "1.15.0" not in by_side:
        raise SystemExit("ACCELERATE_BENCH_PEER names no environment with accelerate 1.15.0: nothing to compare with")
    found = {case: {side: by_side[side][case] for side in by_side} for case in by_side["ours"]}
    worse = [case for case, both in found.items() if is_worse(both["ours"], both["1.15.0"])]
    better = [case for case, both in found.items() if is_worse(both["1.15.0"], both["ours"])]
    print(table(found))
    print(f"\n{len(found)} plans (ours / 1.15.0 where they differ): {len(better)} better, {len(worse)} worse.")
    content = {"machine": machine(), "better": better, "worse": worse, "plans": found}
    (RESULTS / "plans.json").write_text(json.dumps(content, indent=1) + "\n")
    return len(worse)


if __name__ == "__main__":
    sys.exit(main())
