"""Memory maps as SVG, which takes nothing but text: a bar for each device, on one scale, with a legend."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from accelerate.big_modeling.drawing import COLOURS, fill_of, headline, kind_of, kinds_of, moves
from accelerate.big_modeling.memory_map import grouped
from accelerate.big_modeling.units import readable

if TYPE_CHECKING:
    from accelerate.big_modeling.memory_map import DeviceRow, MemoryMap

WIDTH, MARGIN, LEFT = 960, 24, 84
TITLE, BAR, ROW, LINE = 70, 38, 78, 20

#: The width of a letter of the labels, on average and generously, in pixels.
LETTER = 7.2

STYLE = (
    "text{font-family:-apple-system,'Segoe UI','DejaVu Sans',Helvetica,Arial,sans-serif;font-size:13px;fill:#222}"
    ".t{font-size:19px;font-weight:600}.d{font-size:15px;font-weight:600}.s{fill:#555;font-size:12px}"
)
HATCH = (
    '<pattern id="passing" width="6" height="6" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">'
    '<rect width="6" height="6" fill="#f0f0f0"/><rect width="2" height="6" fill="#aaa"/></pattern>'
)


def draw_svg(drawn: MemoryMap) -> str:
    """Return the map as SVG."""
    legend = _legend(drawn)
    said = moves(drawn)
    below = TITLE + len(drawn.rows) * ROW
    places, legend_height = _flow([width for width, _ in legend])
    height = below + legend_height + LINE * (len(said) + 1) + MARGIN
    scale = (WIDTH - LEFT - MARGIN) / (max(map(length_of, drawn.rows), default=1) or 1)
    body = [_text(MARGIN, 38, headline(drawn), "t")]
    for index, row in enumerate(drawn.rows):
        body += _row(row, TITLE + index * ROW, scale, kinds_of(drawn))
    for (x, y), (_, draw) in zip(places, legend, strict=True):
        body.append(draw.replace("translate()", f"translate({x:.0f},{below + y})"))
    top = below + legend_height + LINE
    body += [
        _text(MARGIN + 14 * line.startswith(" "), top + index * LINE, line.strip(), "")
        for index, line in enumerate(said)
    ]
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}">'
    back = f'<rect width="{WIDTH}" height="{height}" fill="white"/>'
    return "\n".join([head, f"<style>{STYLE}</style><defs>{HATCH}</defs>", back, *body, "</svg>\n"])


def length_of(row: DeviceRow) -> float:
    """Return the bytes that a bar stands for."""
    return max(row.used + row.passing, row.limit or 0)


def _text(x: float, y: float, text: str, style: str, anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" class="{style}" text-anchor="{anchor}">{escape(text)}</text>'


def _row(row: DeviceRow, top: int, scale: float, kinds: dict[str, int]) -> list[str]:
    bar = top + 22
    found = [
        _text(LEFT - 12, bar + BAR / 2 + 5, str(row.device), "d", "end"),
        _text(LEFT, bar - 7, fill_of(row), "s"),
        _rect(LEFT, bar, length_of(row) * scale, "#f3f3f3", "its limit" if row.limit else "no limit", "#bbb"),
    ]
    start = float(LEFT)
    for name, size in row.parts:
        colour = COLOURS[kinds[kind_of(name)]]
        found.append(_rect(start, bar, size * scale, colour, f"{name or 'the model'}: {readable(size)}"))
        start += size * scale
    if row.passing:
        said = f"room for the largest part that is brought in: {readable(row.passing)}"
        found.append(_rect(start, bar, row.passing * scale, "url(#passing)", said))
    return found + _labels(row, bar, scale)


def _labels(row: DeviceRow, bar: int, scale: float) -> list[str]:
    """Return the names of groups of parts, in those that are wide enough for theirs."""
    found, start = [], float(LEFT)
    for name, size, _ in grouped(row.parts):
        width = size * scale
        fitting = [label for label in (f"{name}, {readable(size)}", name) if len(label) * LETTER < width - 8]
        if fitting:
            found.append(_text(start + width / 2, bar + BAR / 2 + 5, fitting[0], "", "middle"))
        start += width
    return found


def _rect(x: float, y: float, width: float, fill: str, title: str, stroke: str = "white") -> str:
    return (
        f'<rect x="{x:.1f}" y="{y}" width="{width:.1f}" height="{BAR}" fill="{fill}" stroke="{stroke}" '
        f'stroke-width="0.7"><title>{escape(title)}</title></rect>'
    )


def _legend(drawn: MemoryMap) -> list[tuple[float, str]]:
    """Return the entries of the legend: their widths, and what draws them at a place."""
    sizes: dict[str, float] = {}
    for row in drawn.rows:
        for name, size in row.parts:
            sizes[kind_of(name)] = sizes.get(kind_of(name), 0) + size
    entries = [(COLOURS[number], f"{kind}, {readable(sizes[kind])}") for kind, number in kinds_of(drawn).items()]
    if any(row.passing for row in drawn.rows):
        entries.append(("url(#passing)", "room for what is brought in"))
    return [(44 + len(label) * LETTER, _entry(colour, label)) for colour, label in entries]


def _entry(colour: str, label: str) -> str:
    square = f'<rect y="-11" width="14" height="14" fill="{colour}"/>'
    return f'<g transform="translate()">{square}{_text(20, 1, label, "")}</g>'


def _flow(widths: list[float]) -> tuple[list[tuple[float, int]], int]:
    """Return places for entries of these widths, line by line, and the height of all lines."""
    places: list[tuple[float, int]] = []
    x, y = float(MARGIN), LINE
    for width in widths:
        if x > MARGIN and x + width > WIDTH - MARGIN:
            x, y = float(MARGIN), y + LINE
        places.append((x, y))
        x += width
    return places, y + LINE // 2
