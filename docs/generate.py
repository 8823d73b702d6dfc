"""Writes tables in the documentation: `python -m docs.generate`.

The settings in cli.md are read off the settings themselves: each is declared once, so its flag, key, variable, default
and explanation can't differ from what the table says. The plans in sharded.md are those of
`benchmarks/results/parallel_plans.json`, which `python -m benchmarks.parallel_plans` computes. Tests fail when a page
is behind.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from enum import Enum
from pathlib import Path
from typing import Any

from accelerate.config.option import Option
from accelerate.launchers.settings import declared

PAGE = Path(__file__).parent / "cli.md"
BEGIN, END = "<!-- settings: begin -->", "<!-- settings: end -->"

#: The page with the plans, and where they are.
SHARDED = Path(__file__).parent / "sharded.md"
PLANS = Path(__file__).parent.parent / "benchmarks" / "results" / "parallel_plans.json"
PLANS_BEGIN, PLANS_END = "<!-- plans: begin -->", "<!-- plans: end -->"

#: Settings that choose the layout of the file, or hold a section of it.
WITHOUT_FLAG = "Only in the config file"


def groups() -> dict[str, list[Option]]:
    """Return the settings under their headings, in the order of `accelerate launch --help`."""
    found: dict[str, list[Option]] = {}
    for one in declared().values():
        found.setdefault(one.group if one.flag else WITHOUT_FLAG, []).append(one)
    found[WITHOUT_FLAG] = found.pop(WITHOUT_FLAG, [])
    return found


def code(words: Iterable[str | None]) -> str:
    """Write words as code, with commas; a dash for none."""
    return ", ".join(f"`{word}`" for word in words if word) or "-"


def default(value: Any) -> str:
    """Write a default as a person would type it."""
    if value is None or value == "":
        return "-"
    if isinstance(value, Enum):
        value = value.value
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


def table(settings: list[Option]) -> str:
    """Write one table."""
    lines = ["| flag | key in the config file | variable | default | meaning |", "|---|---|---|---|---|"]
    for one in settings:
        cells = [code([one.flag, *one.aliases]), code([one.yaml]), code([one.env]), default(one.default), one.help]
        lines.append(f"| {' | '.join(cell.replace('|', '&#124;') for cell in cells)} |")
    return "\n".join(lines)


def page() -> str:
    """Return cli.md with today's tables."""
    text = "\n\n".join(f"### {title}\n\n{table(settings)}" for title, settings in groups().items() if settings)
    return between(PAGE.read_text(), BEGIN, text, END)


def between(page: str, begin: str, text: str, end: str) -> str:
    """Return a page with `text` between two marks."""
    pattern = re.compile(re.escape(begin) + ".*" + re.escape(end), re.DOTALL)
    return pattern.sub(lambda _: f"{begin}\n\n{text}\n\n{end}", page)


def sharded_page() -> str:
    """Return sharded.md with the plans that are committed."""
    return between(SHARDED.read_text(), PLANS_BEGIN, plans_table(json.loads(PLANS.read_text())["plans"]), PLANS_END)


def plans_table(plans: list[dict[str, Any]]) -> str:
    """Write what training takes on meshes, in GiB."""
    headers = ["model", "mesh", "weights", "gradients", "optimizer", "activations", "peak", "sent", "tokens"]
    lines = [f"| {' | '.join(headers)} |", "|---" * len(headers) + "|"]
    for plan in plans:
        held = (plan["memory"][name] for name in ("parameters", "gradients", "optimizer", "activations", "peak"))
        sizes = [*held, plan["all"]]
        cells = [plan["model"], f"`{plan['mesh']}`", *map(gib, sizes), f"{plan['tokens'] / 2**20:.2f}M"]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def gib(size: int) -> str:
    """Write bytes in GiB."""
    number = size / 2**30
    return f"{number:,.0f}" if number >= 100 else f"{number:.1f}" if number >= 10 else f"{number:.2f}"


if __name__ == "__main__":
    PAGE.write_text(page())
    SHARDED.write_text(sharded_page())
