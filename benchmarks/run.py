"""Runs the suites, and writes results, pictures and docs/benchmarks.md.

python -m benchmarks.run                    every suite
python -m benchmarks.run step launch        those two
python -m benchmarks.run step --rounds 1    a quick look; --print leaves the files alone
"""

from __future__ import annotations

import argparse
import importlib

from benchmarks import report

SUITES = ["step", "data", "collectives", "imports", "launch", "big_models", "checkpoint", "parallel"]


def main() -> None:
    """Read the command line and run what it asks for."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.run")
    parser.add_argument("suites", nargs="*", choices=[*SUITES, []], default=SUITES)
    parser.add_argument("--rounds", type=int, help="repetitions of each measurement (default: as each suite says)")
    parser.add_argument("--print", action="store_true", help="print the tables and write no file")
    args = parser.parse_args()
    for name in args.suites:
        suite = importlib.import_module(f"benchmarks.{name}").SUITE
        result = suite.run(args.rounds)
        print(
            f"\n{result['title']}\n\n{report.tables(result, suite.tables)}\n\n{report.machine_line(result)}\n",
            flush=True,
        )
        if not args.print:
            report.write(result, suite.pictures, suite.tables)


if __name__ == "__main__":
    main()
