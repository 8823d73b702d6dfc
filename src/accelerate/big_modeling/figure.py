"""Memory maps as images, drawn with matplotlib."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from accelerate.base.messages import message
from accelerate.big_modeling.drawing import COLOURS, fill_of, headline, kind_of, kinds_of, moves
from accelerate.big_modeling.memory_map import grouped
from accelerate.big_modeling.svg import length_of
from accelerate.big_modeling.units import readable

if TYPE_CHECKING:
    from accelerate.big_modeling.memory_map import DeviceRow, MemoryMap

#: Sizes in inches, and how many letters of a label go into the whole width.
WIDTH, ROW, AROUND, LETTERS = 10.0, 0.8, 1.5, 120
BAR = 0.52


def draw_figure(drawn: MemoryMap, path: Path) -> None:
    """Write the map as an image.

    Args:
        drawn: the map.
        path: a file whose ending matplotlib knows.

    Raises:
        ImportError: matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
        from matplotlib.patches import Patch
    except ImportError as error:
        raise ImportError(_without_matplotlib(path)) from error
    said = moves(drawn)
    kinds = kinds_of(drawn)
    figure = Figure(
        figsize=(WIDTH, AROUND + ROW * len(drawn.rows) + 0.25 * (len(said) + len(kinds) // 3)), layout="constrained"
    )
    axes = figure.subplots()
    longest = max(map(length_of, drawn.rows), default=1) or 1
    for index, row in enumerate(drawn.rows):
        _draw_row(axes, index, row, kinds, longest)
    axes.set(xlim=(-0.001 * longest, 1.005 * longest), ylim=(len(drawn.rows) - 0.4, -0.75), xticks=[])
    axes.set_yticks(range(len(drawn.rows)), [str(row.device) for row in drawn.rows], fontweight="bold")
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    axes.set_title(headline(drawn), loc="left", fontweight="bold")
    handles = [Patch(color=COLOURS[number], label=kind) for kind, number in kinds.items()]
    if any(row.passing for row in drawn.rows):
        handles.append(
            Patch(facecolor="#f0f0f0", edgecolor="#aaaaaa", hatch="///", label="room for what is brought in")
        )
    figure.legend(handles=handles, loc="outside lower left", ncols=3, frameon=False, fontsize=9)
    axes.set_xlabel("\n".join(said), loc="left", fontsize=9, linespacing=1.5)
    figure.savefig(path, dpi=150)


def _draw_row(axes: Any, index: int, row: DeviceRow, kinds: dict[str, int], longest: float) -> None:
    axes.barh(index, length_of(row), BAR, color="#f3f3f3", edgecolor="#bbbbbb", linewidth=0.7)
    start = 0.0
    for name, size in row.parts:
        axes.barh(index, size, BAR, left=start, color=COLOURS[kinds[kind_of(name)]], edgecolor="white", linewidth=0.4)
        start += size
    if row.passing:
        axes.barh(index, row.passing, BAR, left=start, color="#f0f0f0", edgecolor="#aaaaaa", hatch="///", linewidth=0)
    axes.text(0, index - BAR / 2 - 0.05, fill_of(row), fontsize=8, color="#555555", va="bottom")
    start = 0.0
    for name, size, _ in grouped(row.parts):
        fitting = [label for label in (f"{name}, {readable(size)}", name) if len(label) < LETTERS * size / longest - 1]
        if fitting:
            axes.text(start + size / 2, index, fitting[0], fontsize=8.5, ha="center", va="center")
        start += size


def _without_matplotlib(path: Path) -> str:
    return message(
        given=f"the image {path}",
        why="it is drawn with matplotlib, which is not installed",
        allowed=".svg without it",
        do="run `pip install matplotlib`, or choose the ending .svg",
    )
