"""Memory maps: the figures, the text, the pictures, and what is refused."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from collections import OrderedDict
from pathlib import Path

import pytest
import torch
from torch import nn

from accelerate.big_modeling import map_memory
from accelerate.big_modeling.memory_map import MemoryMap, grouped, parse_max_memory
from accelerate.big_modeling.svg import draw_svg

MIB = 2**20


class Block(nn.Module):
    """One MiB in fp32."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(256, 512, bias=False)
        self.down = nn.Linear(512, 256, bias=False)


def model() -> nn.Module:
    """Two MiB, eight blocks of one MiB, and a head of half a MiB, on meta."""
    with torch.device("meta"):
        return nn.Sequential(
            OrderedDict(
                embed=nn.Embedding(2048, 256),
                layers=nn.ModuleList(Block() for _ in range(8)),
                head=nn.Linear(512, 256, bias=False),
            )
        )


def drawn(**budget: int) -> MemoryMap:
    """Return the map for budgets in MiB; `gpu` is device 0, and `gpu1` device 1."""
    names = {"gpu": 0, "gpu1": 1}
    limits = {names.get(name, name): size * MIB for name, size in budget.items()}
    return map_memory(model(), limits, no_split_module_classes="Block", disk_bandwidth=MIB, link_bandwidth=2 * MIB)


def test_figures_of_a_model_in_three_places() -> None:
    found = drawn(gpu=5, cpu=4)
    used = {row.device: (row.used / MIB, row.left and row.left / MIB, row.passing / MIB) for row in found.rows}
    assert used == {0: (4, 0, 1), "cpu": (3, 1, 0), "disk": (3.5, None, 0)}
    assert (found.from_disk, found.over_link, found.crossings) == (3.5 * MIB, 6.5 * MIB, 0)
    assert found.seconds == 3.5
    assert found.size == 10.5 * MIB


def test_without_an_accelerator_only_the_disk_is_read() -> None:
    found = drawn(cpu=5)
    assert found.main == "cpu"
    assert (found.from_disk, found.over_link) == (6.5 * MIB, 0)
    assert next(row.passing for row in found.rows if row.device == "cpu") == MIB


def test_what_fits_moves_nothing_and_what_is_on_two_devices_crosses() -> None:
    assert "Nothing moves in a forward." in drawn(gpu=11).text()
    assert drawn(gpu=6, gpu1=6).crossings == 1
    assert "activations, to another device, once" in drawn(gpu=6, gpu1=6).text()


@pytest.mark.parametrize("width", [60, 80, 120])
@pytest.mark.parametrize("budget", [{"gpu": 5, "cpu": 4}, {"gpu": 11}, {"cpu": 3}, {"gpu": 1, "cpu": 20}], ids=str)
def test_the_text_keeps_to_its_width_and_names_everything(width: int, budget: dict[str, int]) -> None:
    found = drawn(**budget)
    text = found.text(width)
    bars = [line for line in text.splitlines() if line[:6].isspace()]
    assert max(map(len, bars)) <= width
    assert [row.device for row in found.rows if f"\n{row.device!s:<6}" not in text] == []
    assert [name for row in found.rows for name, _, _ in grouped(row.parts) if name not in text] == []
    assert len(text.splitlines()[0]) <= width


def test_a_device_that_the_largest_part_cannot_pass_through_says_so() -> None:
    tight = map_memory(nn.Sequential(nn.Linear(8, 8), nn.Linear(64, 64)), {"cpu": 300})
    assert "cpu   0 B of 300 B, 16.2 KiB for parts passing through, 16.0 KiB too little" in tight.text()


def test_printing_to_a_pipe_has_no_colours(capsys: pytest.CaptureFixture[str]) -> None:
    drawn(gpu=5, cpu=4).print()
    shown = capsys.readouterr().out
    assert "\x1b" not in shown
    assert shown.rstrip() == drawn(gpu=5, cpu=4).text(80)


@pytest.mark.parametrize("budget", [{"gpu": 5, "cpu": 4}, {"gpu": 11}, {"cpu": 3}], ids=str)
def test_the_svg_is_well_formed_and_nothing_leaves_it(budget: dict[str, int]) -> None:
    root = ElementTree.fromstring(draw_svg(drawn(**budget)))
    width, height = float(root.get("width", 0)), float(root.get("height", 0))
    rectangles = [each for each in root.iter("{http://www.w3.org/2000/svg}rect") if each.get("x")]
    assert len(rectangles) > 8
    ends = [(float(each.get("x", 0)) + float(each.get("width", 0)), float(each.get("y", 0))) for each in rectangles]
    assert all(0 < right <= width and 0 < bottom < height for right, bottom in ends)
    texts = list(root.iter("{http://www.w3.org/2000/svg}text"))
    assert all(float(each.get("y", 0)) < height - 5 for each in texts)
    assert "Sequential: 10.5 MiB" in [each.text for each in texts]


@pytest.mark.parametrize(("name", "begins"), [("plan.svg", b"<svg"), ("plan.png", b"\x89PNG"), ("plan.pdf", b"%PDF")])
def test_pictures_are_written(tmp_path: Path, name: str, begins: bytes) -> None:
    drawn(gpu=5, cpu=4).save(tmp_path / name)
    assert (tmp_path / name).read_bytes().startswith(begins)


def test_other_pictures_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="can't be drawn as .gif"):
        drawn(gpu=5).save(tmp_path / "plan.gif")
    monkeypatch.setitem(__import__("sys").modules, "matplotlib.figure", None)
    with pytest.raises(ImportError, match="pip install matplotlib"):
        drawn(gpu=5).save(tmp_path / "plan.png")
    assert list(tmp_path.iterdir()) == []


def test_budgets_on_the_command_line() -> None:
    assert parse_max_memory("0=10GiB, cpu=24GiB,disk=1TB") == {0: "10GiB", "cpu": "24GiB", "disk": "1TB"}


@pytest.mark.parametrize(
    ("text", "why"), [("0", "does not say"), ("=1GB", "does not say"), ("0=", "does not say"), ("0=1GB,0=2GB", "twice")]
)
def test_budgets_that_cannot_be_read(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        parse_max_memory(text)


def test_a_bandwidth_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="nothing would ever arrive"):
        map_memory(model(), {"cpu": MIB}, link_bandwidth=0)


def test_balanced_plans_use_every_accelerator() -> None:
    found = map_memory(model(), {0: 20 * MIB, 1: 20 * MIB}, balanced=True, no_split_module_classes="Block")
    assert all(row.parts for row in found.rows)
    assert found.as_dict()["devices"]["0"]["left"] > 0


def test_parts_that_follow_each_other_are_one() -> None:
    parts = [("embed", 5), ("layers.0", 1), ("layers.1", 1), ("layers.3", 1), ("head", 2), ("0", 1), ("1", 2)]
    assert grouped(parts) == [
        ("embed", 5, 1),
        ("layers.0-1", 2, 2),
        ("layers.3", 1, 1),
        ("head", 2, 1),
        ("0-1", 3, 2),
    ]
