"""Memory maps in the terminal: a bar for each device, filled with the parts of the model, and what moves.

Kinds of parts differ by colour where there are colours, and by pattern everywhere, so that the map is readable in a
file too. Bars are as wide as the terminal; a full bar is what the device may hold.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from accelerate.big_modeling.memory_map import grouped
from accelerate.big_modeling.units import readable

if TYPE_CHECKING:
    from accelerate.big_modeling.memory_map import DeviceRow, MemoryMap

#: Colours that differ for the colour-blind too (Okabe and Ito), one for each kind of part.
COLOURS = ("#56B4E9", "#E69F00", "#009E73", "#CC79A7", "#F0E442", "#0072B2", "#D55E00")
PATTERNS = "█▓▒▚▞▤▥"
FREE, PASSING = "·", "░"

INDENT = "      "
NARROWEST, WIDEST = 60, 120

#: Text with a style that rich knows.
Line = list[tuple[str, str]]


def kind_of(name: str) -> str:
    """Return what parts of one kind have in common: their name without numbers."""
    return ".".join(part for part in name.split(".") if not part.isdigit() and "-" not in part) or "the model"


def kinds_of(drawn: MemoryMap) -> dict[str, int]:
    """Return the kinds of parts with a number for each, which stands for its colour and pattern."""
    kinds = dict.fromkeys(kind_of(name) for row in drawn.rows for name, _ in row.parts)
    return {kind: index % len(COLOURS) for index, kind in enumerate(kinds)}


def lines(drawn: MemoryMap, width: int) -> list[Line]:
    """Return the map for a terminal of `width` columns."""
    kinds = kinds_of(drawn)
    found: list[Line] = [[(headline(drawn), "bold")]]
    for row in drawn.rows:
        found += [[], _head(row), _bar(row, kinds, max(NARROWEST, width) - len(INDENT))]
        found += _contents(row, kinds, max(NARROWEST, width))
    return [*found, [], *([(said, "")] for said in moves(drawn))]


def headline(drawn: MemoryMap) -> str:
    """Return the title with the size of the model."""
    return f"{drawn.title}: {readable(drawn.size)}"


def _head(row: DeviceRow) -> Line:
    return [(f"{row.device!s:<6}", "bold"), (fill_of(row), "")]


def fill_of(row: DeviceRow) -> str:
    """Return how full a device is, in words."""
    if row.limit is None or row.left is None:
        return f"{readable(row.used)}, no limit"
    left = f"{readable(row.left)} left" if row.left >= 0 else f"{readable(-row.left)} too little"
    passing = f", {readable(row.passing)} for parts passing through" if row.passing else ""
    return f"{readable(row.used)} of {readable(row.limit)}{passing}, {left}"


def _bar(row: DeviceRow, kinds: dict[str, int], columns: int) -> Line:
    full = max(row.limit or 0, row.used + row.passing) or 1
    found: Line = [(INDENT, "")]
    done, start = 0, 0.0
    for name, size in row.parts:
        start += size
        end = round(columns * start / full)
        number = kinds[kind_of(name)]
        found.append((PATTERNS[number] * (end - done), COLOURS[number]))
        done = end
    passing = round(columns * row.passing / full)
    return [*found, (PASSING * passing, "dim"), (FREE * (columns - done - passing), "dim")]


def _contents(row: DeviceRow, kinds: dict[str, int], width: int) -> list[Line]:
    found: list[Line] = []
    for name, size, count in grouped(row.parts):
        number = kinds[kind_of(name)]
        said = readable(size) + (f", {count} x {readable(size / count)}" if count > 1 else "")
        room = width - len(INDENT) - 4 - len(said)
        shown = name if len(name) <= room else "…" + name[len(name) - room + 1 :]
        found.append([(INDENT, ""), (PATTERNS[number], COLOURS[number]), (f" {shown}  {said}", "")])
    if row.passing:
        found.append([(f"{INDENT}{PASSING} room for the largest part that is brought in", "dim")])
    return found


def moves(drawn: MemoryMap) -> list[str]:
    """Return what moves in every forward, in sentences."""
    found = []
    if drawn.from_disk:
        found.append(f"  {_moved(drawn.from_disk, 'from the disk', drawn.disk_bandwidth)}")
    if drawn.over_link:
        found.append(f"  {_moved(drawn.over_link, f'to device {drawn.main}', drawn.link_bandwidth)}")
    if drawn.crossings:
        times = {1: "once", 2: "twice"}.get(drawn.crossings, f"{drawn.crossings} times")
        found.append(f"  activations, to another device, {times}")
    if not found:
        return ["Nothing moves in a forward."]
    total = [f"In all {_seconds(drawn.seconds)} if reading and sending overlap; computing hides what it can."]
    return ["What moves in every forward:", *found, *(total if drawn.seconds else [])]


def _moved(size: float, where: str, speed: float) -> str:
    return f"{readable(size)} {where}, {_seconds(size / speed)} at {speed / 1e9:.3g} GB/s"


def _seconds(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds >= 0.1 else f"{seconds * 1000:.1f} ms"


def print_lines(drawn: MemoryMap) -> None:
    """Print the map as wide as the terminal, and in its colours if it has any."""
    from rich.console import Console
    from rich.text import Text

    console = Console(highlight=False, soft_wrap=True)
    for line in lines(drawn, min(WIDEST, console.width)):
        console.print(Text.assemble(*line))
