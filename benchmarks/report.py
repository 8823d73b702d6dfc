"""Turns measurements into what people read: a Markdown table, a picture, and the page in docs/."""

from __future__ import annotations

import json
import re
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from textwrap import fill
from typing import Any

from benchmarks.harness import RESULTS, ROOT, Pairs, Picture

PAGE = ROOT / "docs" / "benchmarks.md"
SIDES = ("1.15.0", "ours")

#: Ratios further apart than this are drawn on a logarithmic axis.
WIDE = 6


def seconds(value: float) -> str:
    """Write a duration with a unit that suits it."""
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if abs(value) >= size:
            return f"{value / size:.3g} {unit}"
    return f"{value / 1e-6:.3g} us"


def signed(value: float) -> str:
    """Write a difference of durations."""
    return f"{'+' if value >= 0 else '-'}{seconds(abs(value))}"


def middle_half(values: list[float]) -> tuple[float, float]:
    """Return the range in which the middle half of the values lies."""
    if len(values) < 4:
        return min(values), max(values)
    low, _, high = statistics.quantiles(values, n=4)
    return low, high


def cell(pairs: Pairs | None, shows: str) -> str:
    """Write one result: a ratio with the extra time, or a whole time; each with the range of its middle half."""
    if pairs is None:
        return "not measured"
    if shows == "time" or not pairs.base:
        low, high = middle_half(pairs.library)
        extra = f"; {signed(pairs.extra())}" if pairs.base else ""
        return f"**{seconds(statistics.median(pairs.library))}** ({seconds(low)} to {seconds(high)}{extra})"
    ratios = pairs.ratios()
    low, high = middle_half(ratios)
    return f"**{statistics.median(ratios):.2f}x** ({low:.2f} to {high:.2f}; {signed(pairs.extra())})"


def memory(peaks: list[list[int]]) -> str:
    """Write the median peak of a process's own memory, and of pages of files, in MB."""
    own, files = (statistics.median(values) / 1e6 for values in zip(*peaks, strict=True))
    return f"{own:.0f} + {files:.0f}"


def memory_table(result: dict) -> str:
    """Write the Markdown table of the peaks of memory; nothing where none was watched."""
    lines = ["| work: memory of its own + pages of files, MB | base | 1.15.0 | ours |", "|---|---|---|---|"]
    for key, row in result["rows"].items():
        by_side = pairs_of(result, key)
        base = [peak for pairs in by_side.values() for peak in pairs.base_memory]
        if base:
            found = [by_side[side].library_memory if side in by_side else [] for side in SIDES]
            cells = [memory(peaks) if peaks else "not measured" for peaks in (base, *found)]
            lines.append(f"| {row['name']} | {' | '.join(cells)} |")
    return "\n".join(lines) if len(lines) > 2 else ""


def tables(result: dict, others: Sequence[Callable[[dict], str]] = ()) -> str:
    """Write all tables of a suite: of times, of memory, and what `others` write."""
    return "\n\n".join(filter(None, (written(result) for written in (table, memory_table, *others))))


def pairs_of(result: dict, row: str) -> dict[str, Pairs]:
    """Return the blocks of one row, by side."""
    return {side: Pairs(**blocks) for side, blocks in result["blocks"].get(row, {}).items()}


def table(result: dict) -> str:
    """Write the Markdown table of a suite."""
    lines = ["| work | compared with | 1.15.0 | ours | goal |", "|---|---|---|---|---|"]
    for key, row in result["rows"].items():
        by_side = pairs_of(result, key)
        base = [value for pairs in by_side.values() for value in pairs.base]
        compared = f"{row['base']} ({seconds(statistics.median(base))})" if base else row["base"]
        cells = [cell(by_side.get(side), result["shows"]) for side in SIDES]
        lines.append(f"| {row['name']} | {compared} | {cells[0]} | {cells[1]} | {row['goal']} |")
    return "\n".join(lines)


def machine_line(result: dict) -> str:
    """Say where, when and with what the figures were measured."""
    facts = result["machine"]
    return (
        f"Measured {facts['date']} at commit {facts['commit']} on {facts['processor']}, {facts['cores']} cores, "
        f"{facts['memory_gib']} GiB, Python {facts['python']}, torch {facts['torch']}, one thread per process."
    )


def draw(result: dict, path: Path) -> None:
    """Draw one group of bars per row: ratios to the base, or whole times with the base beside them."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    ratio = result["shows"] == "ratio"
    keys = list(reversed(result["rows"]))
    figure, axes = plt.subplots(figsize=(9, 1.2 + 0.8 * len(keys)), layout="constrained")
    bars_of = {"1.15.0": "tab:gray", "ours": "tab:blue"} | ({} if ratio else {"base": "lightgray"})
    for number, (name, color) in enumerate(bars_of.items()):
        found = [(index, _bar(pairs_of(result, key), name, ratio)) for index, key in enumerate(keys)]
        values = {index + 0.27 * (1 - number): value for index, value in found if value is not None}
        drawn = axes.barh(list(values), list(values.values()), 0.25, label=name, color=color)
        labels = [f"{value:.2f}x" if ratio else seconds(value) for value in values.values()]
        axes.bar_label(drawn, labels=labels, padding=3, fontsize=8)
    axes.set_yticks(range(len(keys)), [fill(result["rows"][key]["name"].replace("`", ""), 36) for key in keys])
    axes.set(title=result["title"], xlabel="time, as a multiple of the base" if ratio else "seconds, logarithmic")
    if ratio:
        axes.axvline(1, color="black", linewidth=1)
        _draw_goals(axes, result, keys)
    else:
        axes.set(xscale="log", xlim=(0.01, None))
    wide = axes.get_xlim()[1] > WIDE
    if ratio and wide:
        axes.set(xscale="log", xlim=(0.3, None), xlabel="time, as a multiple of the base, logarithmic")
    axes.set_xlim(right=axes.get_xlim()[1] * (2 if wide or not ratio else 1.08))
    figure.legend(loc="outside lower right", ncols=len(bars_of) + 1, frameon=False)
    figure.savefig(path, dpi=150)
    plt.close(figure)


def _draw_goals(axes: Any, result: dict, keys: list[str]) -> None:
    """Draw a mark at the goal of each row that has one in numbers."""
    limits = {index: limit for index, key in enumerate(keys) if (limit := result["rows"][key].get("limit"))}
    if limits:
        bottoms, tops = [index - 0.4 for index in limits], [index + 0.4 for index in limits]
        axes.vlines(list(limits.values()), bottoms, tops, color="tab:green", linewidth=2, label="goal")


def _bar(by_side: dict[str, Pairs], name: str, ratio: bool) -> float | None:
    """Return the length of one bar; None where nothing was measured."""
    if name == "base":
        values = [value for pairs in by_side.values() for value in pairs.base]
    elif name not in by_side:
        return None
    else:
        values = by_side[name].ratios() if ratio else by_side[name].library
    return statistics.median(values) if values else None


def as_json(result: dict) -> str:
    """Write the result so that it can be read and compared: a line per fact and per row of blocks, to 10 ns."""

    def rounded(value: object) -> object:
        if isinstance(value, dict):
            return {key: rounded(inner) for key, inner in value.items()}
        if isinstance(value, list):
            return [rounded(inner) for inner in value]
        return round(value, 8) if isinstance(value, float) else value

    flat = {key: value for key, value in result.items() if key != "blocks"}
    lines = [f'  "{row}": {json.dumps(rounded(blocks))}' for row, blocks in result["blocks"].items()]
    return json.dumps(flat, indent=1)[:-2] + ',\n "blocks": {\n' + ",\n".join(lines) + "\n }\n}\n"


def write(result: dict, pictures: Sequence[Picture] = (), others: Sequence[Callable[[dict], str]] = ()) -> None:
    """Write the measurements, the pictures and the part of the page that shows them."""
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"{result['suite']}.json").write_text(as_json(result))
    picture = RESULTS / f"{result['suite']}.png"
    draw(result, picture)
    text = f"{tables(result, others)}\n\n{machine_line(result)}"
    text += f"\n\n![{result['title']}](../benchmarks/results/{picture.name})"
    for more in pictures:
        picture = RESULTS / f"{result['suite']}_{more.name}.png"
        more.draw(result, picture)
        text += f"\n\n![{more.title}](../benchmarks/results/{picture.name})"
    begin, end = f"<!-- {result['suite']}: begin -->", f"<!-- {result['suite']}: end -->"
    page = PAGE.read_text()
    pattern = re.compile(re.escape(begin) + ".*?" + re.escape(end), re.DOTALL)
    PAGE.write_text(pattern.sub(lambda _: f"{begin}\n{text}\n{end}", page))
