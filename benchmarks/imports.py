"""What it costs to import the package and to ask a command for help."""

from __future__ import annotations

import subprocess

from benchmarks.harness import Pairs, Row, Side, Suite, environment, time_command

BARE = "bare Python"
ROWS = {
    "import": Row("`import accelerate`", BARE, "<= 40 ms in all, no torch"),
    "accelerator": Row("`from accelerate import Accelerator`, torch imported before", "-", "<= 50 ms"),
    "help": Row("`accelerate --help`", BARE, "<= 0.15 s in all, no torch"),
    "launch_help": Row("`accelerate launch --help`", BARE, "<= 0.15 s in all, no torch"),
    "config_help": Row("`accelerate config --help`", BARE, "<= 0.15 s in all, no torch"),
}
HELP = {"help": ["--help"], "launch_help": ["launch", "--help"], "config_help": ["config", "--help"]}

ACCELERATOR = """
import time, torch
started = time.perf_counter()
from accelerate import Accelerator
print(time.perf_counter() - started)
"""


def import_with_torch(side: Side) -> float:
    """Return the seconds that `from accelerate import Accelerator` takes in a process that has torch."""
    done = subprocess.run(
        [side.python, "-c", ACCELERATOR], env=environment(), capture_output=True, text=True, timeout=120, check=True
    )
    return float(done.stdout.splitlines()[-1])


def measure(side: Side) -> dict[str, Pairs]:
    """Run each row once, each beside a bare interpreter."""

    def beside_bare(command: list[str]) -> Pairs:
        return Pairs([time_command([side.python, "-c", "pass"])], [time_command(command)])

    found = {
        "import": beside_bare([side.python, "-c", "import accelerate"]),
        "accelerator": Pairs([], [import_with_torch(side)]),
    }
    accelerate = str(side.scripts / "accelerate")
    return found | {row: beside_bare([accelerate, *arguments]) for row, arguments in HELP.items()}


SUITE = Suite(name="imports", title="Start-up", rows=ROWS, measure=measure, rounds=15, shows="time")
