"""Writes the tables of settings in cli.md from the settings themselves: `python -m docs.generate`.

A setting is declared once, so its flag, key, variable, default and explanation can't differ from what the table says. A
test fails when the page is behind.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from enum import Enum
from pathlib import Path
from typing import Any

from accelerate.config.option import Option
from accelerate.launchers.settings import declared

PAGE = Path(__file__).parent / "cli.md"
BEGIN, END = "<!-- settings: begin -->", "<!-- settings: end -->"

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
    pattern = re.compile(re.escape(BEGIN) + ".*" + re.escape(END), re.DOTALL)
    return pattern.sub(lambda _: f"{BEGIN}\n\n{text}\n\n{END}", PAGE.read_text())


if __name__ == "__main__":
    PAGE.write_text(page())
