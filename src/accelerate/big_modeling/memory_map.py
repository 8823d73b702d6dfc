"""See a plan: which part of a model goes to which device, what is left over there, and what moves in every forward."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from accelerate.base.messages import message
from accelerate.big_modeling.budget import as_budget, balance, get_max_memory
from accelerate.big_modeling.device_map import OFFLOADED, Plan, plan_within
from accelerate.big_modeling.tree import Node
from accelerate.big_modeling.units import convert_file_size_to_int

#: What is assumed of a disk and of the link to an accelerator, per second, where nothing is said: an NVMe drive, and
#: PCIe 4.0 with 16 lanes.
DISK = "2GB"
LINK = "20GB"


@dataclass(frozen=True)
class DeviceRow:
    """One device of a plan.

    Args:
        device: as it is called in maps.
        parts: the parts of the model on it, with their bytes, in the order of definition.
        limit: the bytes that it may hold; None without limit.
        passing: the bytes of the largest part that is brought in from elsewhere and runs here.
    """

    device: int | str
    parts: tuple[tuple[str, int | float], ...]
    limit: int | float | None
    passing: int | float = 0

    @property
    def used(self) -> int | float:
        """The bytes of the parts."""
        return sum(size for _, size in self.parts)

    @property
    def left(self) -> int | float | None:
        """The bytes that are left over; below zero where what passes through has no room. None without limit."""
        return None if self.limit is None else self.limit - self.used - self.passing


@dataclass(frozen=True)
class MemoryMap:
    """A plan as people look at it; `print(drawn.text())`, or `drawn.save("plan.svg")`.

    Args:
        title: what the model is called.
        rows: the devices, in the order in which they are filled.
        disk_bandwidth: bytes per second that the disk is read at.
        link_bandwidth: bytes per second between host and accelerator.
        plan: what it is drawn from.
    """

    title: str
    rows: tuple[DeviceRow, ...]
    disk_bandwidth: float
    link_bandwidth: float
    plan: Plan

    @property
    def device_map(self) -> dict[str, int | str]:
        """The device map, part by part."""
        return dict(self.plan.device_map)

    @property
    def size(self) -> int | float:
        """The bytes of the whole model."""
        return sum(row.used for row in self.rows)

    @property
    def main(self) -> int | str:
        """Where parts run that are offloaded: the first accelerator that holds something, else the CPU."""
        return next((row.device for row in self.rows if row.device not in OFFLOADED and row.parts), "cpu")

    def runs_on(self, device: int | str) -> int | str:
        """Return where the parts that a device holds run."""
        return self.main if device in OFFLOADED else device

    def block_bytes(self, device: int | str) -> int | float:
        """Return the bytes of the numbered parts, which are the layers of a model, that a device holds."""
        parts = next(row.parts for row in self.rows if row.device == device)
        return sum(size for name, size in parts if any(each.isdigit() for each in name.split(".")))

    @property
    def from_disk(self) -> int | float:
        """The bytes that are read from the disk in every forward."""
        return sum(row.used for row in self.rows if row.device == "disk")

    @property
    def over_link(self) -> int | float:
        """The bytes that go to an accelerator in every forward; none without an accelerator."""
        return 0 if self.main == "cpu" else sum(row.used for row in self.rows if row.device in OFFLOADED)

    @property
    def crossings(self) -> int:
        """How often a forward goes on on another device."""
        runs = [self.runs_on(device) for device in self.plan.device_map.values()]
        return sum(before != after for before, after in itertools.pairwise(runs))

    @property
    def seconds(self) -> float:
        """How long moving takes per forward, where reading and sending overlap."""
        return max(self.from_disk / self.disk_bandwidth, self.over_link / self.link_bandwidth)

    def text(self, width: int = 80) -> str:
        """Return the map for a terminal of `width` columns, without colours."""
        from accelerate.big_modeling.drawing import lines

        return "\n".join("".join(text for text, _ in line).rstrip() for line in lines(self, width))

    def print(self) -> None:
        """Print the map, in colours where the terminal has them, and as wide as it is."""
        from accelerate.big_modeling.drawing import print_lines

        print_lines(self)

    def as_dict(self) -> dict[str, Any]:
        """Return the figures of the map by name."""
        devices = {
            str(row.device): {"used": row.used, "limit": row.limit, "left": row.left, "parts": dict(row.parts)}
            for row in self.rows
        }
        moved = {"from_disk": self.from_disk, "over_link": self.over_link, "crossings": self.crossings}
        return {"title": self.title, "size": self.size, "devices": devices, **moved, "seconds": self.seconds}

    def save(self, path: str | Path) -> None:
        """Draw the map into a file.

        Args:
            path: `.svg` needs nothing; `.png` and `.pdf` need matplotlib.

        Raises:
            ValueError: a file of another kind.
            ImportError: matplotlib is needed, and not installed.
        """
        path = Path(path)
        if path.suffix == ".svg":
            from accelerate.big_modeling.svg import draw_svg

            path.write_text(draw_svg(self), encoding="utf-8")
        elif path.suffix in (".png", ".pdf"):
            from accelerate.big_modeling.figure import draw_figure

            draw_figure(self, path)
        else:
            raise ValueError(
                message(
                    given=f"the file {path}",
                    why=f"a map can't be drawn as {path.suffix or 'a file without ending'}",
                    allowed=".svg, .png, .pdf",
                    do="choose one of these endings",
                )
            )


def map_memory(
    model: torch.nn.Module,
    max_memory: Mapping[int | str, int | str] | None = None,
    *,
    title: str | None = None,
    no_split_module_classes: str | Iterable[str] | None = None,
    dtype: Any = None,
    balanced: bool = False,
    disk_bandwidth: int | str = DISK,
    link_bandwidth: int | str = LINK,
) -> MemoryMap:
    """Return the map of a model: where its parts would go, and what that costs in every forward.

    Args:
        model: the model, on any device.
        max_memory: see `get_max_memory`.
        title: what to call it.
        no_split_module_classes: names of classes that are not to be split; by default what the model itself says, as
            those of transformers do.
        dtype: what the weights will be converted to when they are loaded.
        balanced: spread the model evenly over the accelerators.
        disk_bandwidth: bytes per second, or text such as "2GB".
        link_bandwidth: between host and accelerator, likewise.

    Raises:
        ValueError: a bandwidth of nothing, or a budget that can't be read or that nothing fits.
    """
    disk, link = _speed("disk_bandwidth", disk_bandwidth), _speed("link_bandwidth", link_bandwidth)
    if no_split_module_classes is None:
        no_split_module_classes = getattr(model, "_no_split_modules", None)
    budget = get_max_memory() if max_memory is None else as_budget(max_memory)
    if balanced:
        budget = balance(model, budget, no_split_module_classes, dtype)
    plan = plan_within(budget, model, no_split_module_classes, dtype)
    return MemoryMap(title or type(model).__name__, _rows(plan), disk, link, plan)


def _speed(name: str, value: int | str) -> int:
    speed = convert_file_size_to_int(value)
    if speed < 1:
        raise ValueError(
            message(
                given=f"{name}={value!r}",
                why="nothing would ever arrive",
                allowed="bytes per second, or text such as '2GB'",
                do="give the speed of the hardware, or leave it out",
            )
        )
    return speed


def _rows(plan: Plan) -> tuple[DeviceRow, ...]:
    nodes = {node.name: node for node in plan.tree.nodes}
    parts: dict[int | str, list[tuple[str, int | float]]] = {device: [] for device in plan.used}
    for name, device in plan.device_map.items():
        parts[device] += ((node.name, node.size) for node in _shown(nodes[name]))
    main = next((device for device, held in parts.items() if held and device not in OFFLOADED), "cpu")
    away = ("disk",) if main == "cpu" else OFFLOADED
    passing = max((size for device in away for _, size in parts.get(device, ())), default=0)
    rows = (
        DeviceRow(device, tuple(held), plan.budget.get(device), passing if device == main else 0)
        for device, held in parts.items()
    )
    return tuple(row for row in rows if row.parts or row.limit)


def _shown(node: Node) -> Iterator[Node]:
    """Yield the parts of a part as a person wants to see them: numbered blocks, and what is not in one."""
    if node.whole or node.name.rpartition(".")[2].isdigit():
        yield node
    else:
        for child in node.children:
            yield from _shown(child)


def parse_max_memory(text: str) -> dict[int | str, str]:
    """Return the budget that is written as "0=10GiB,cpu=24GiB".

    Raises:
        ValueError: it is written otherwise, or names a device twice.
    """
    budget: dict[int | str, str] = {}
    for item in text.split(","):
        name, separator, size = (each.strip() for each in item.partition("="))
        device = int(name) if name.isdigit() else name
        if not (name and separator and size) or device in budget:
            why = (
                f"names {device} twice"
                if device in budget
                else f"does not say how much which device may hold: {item!r}"
            )
            raise ValueError(
                message(
                    given=f"max_memory {text!r}",
                    why=f"it {why}",
                    allowed="device=size, several with commas, such as 0=10GiB,cpu=24GiB",
                    do="write one for each device; the disk has no limit unless one is given",
                )
            )
        budget[device] = size
    return budget


def grouped(parts: Sequence[tuple[str, int | float]]) -> list[tuple[str, int | float, int]]:
    """Return parts with those that follow each other in number as one: `layers.0-9`, their bytes, how many they are."""
    found: list[tuple[str, int, int, int | float]] = []  # prefix, first, last, bytes; -1 where there is no number
    for name, size in parts:
        prefix, _, key = name.rpartition(".")
        last = found[-1] if found else None
        if not key.isdigit():
            found.append((name, -1, -1, size))
        elif last and last[0] == prefix and last[2] >= 0 and last[2] + 1 == int(key):
            found[-1] = (prefix, last[1], int(key), last[3] + size)
        else:
            found.append((prefix, int(key), int(key), size))
    return [(_range(*each[:3]), each[3], each[2] - each[1] + 1) for each in found]


def _range(prefix: str, first: int, last: int) -> str:
    if first < 0:
        return prefix or "the model"
    numbers = f"{first}" if first == last else f"{first}-{last}"
    return f"{prefix}.{numbers}" if prefix else numbers
