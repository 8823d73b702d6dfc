"""Models are cut into stages of even size, at modules that can begin one."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from accelerate.big_modeling.stages import check_split_points, even_stages, first_of_stages, split_at


def tower(sizes) -> nn.Sequential:
    return nn.Sequential(*(nn.Linear(1, size, bias=False, device="meta") for size in sizes))


def best(sizes: list[int], count: int) -> int:
    """Return the least size that the largest of `count` stages can have, trying everything."""
    if count == 1:
        return sum(sizes)
    return min(max(sum(sizes[:at]), best(sizes[at:], count - 1)) for at in range(1, len(sizes) - count + 2))


@given(st.lists(st.integers(1, 30), min_size=3, max_size=9), st.integers(1, 3))
def test_the_largest_stage_is_as_small_as_can_be(sizes, count) -> None:
    stages = even_stages(tower(sizes), count)
    totals = [sum(size for size, stage in zip(sizes, stages.values(), strict=True) if stage == n) for n in range(count)]
    assert list(stages.values()) == sorted(stages.values())
    assert min(totals) > 0
    assert max(totals) == best(sizes, count)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.second = nn.Linear(4, 4)

    def forward(self, value):
        return value + self.second(torch.tanh(self.first(value)))


class Blocks(nn.Module):
    def __init__(self, count: int = 3) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(4))
        self.blocks = nn.ModuleList([Block() for _ in range(count)])

    def forward(self, value):
        value = value * self.scale
        for block in self.blocks:
            value = block(value)
        return value


def test_repeated_blocks_stay_whole_while_there_are_enough() -> None:
    assert first_of_stages(even_stages(Blocks(), 3), Blocks()) == ["blocks.1", "blocks.2"]
    assert first_of_stages(even_stages(Blocks(2), 4), Blocks(2)) == [
        "blocks.0.second",
        "blocks.1.first",
        "blocks.1.second",
    ]


def test_classes_can_be_named_that_stay_whole() -> None:
    assert first_of_stages(even_stages(Blocks(2), 2, "Block"), Blocks(2)) == ["blocks.1"]
    with pytest.raises(ValueError, match="at most 2 processes"):
        even_stages(Blocks(2), 3, ["Block"])


def test_more_stages_than_layers_are_refused() -> None:
    with pytest.raises(ValueError, match="4 processes for a Sequential"):
        even_stages(tower([1, 2, 3]), 4)


@pytest.mark.parametrize(
    ("names", "count", "said"),
    [
        (["blocks.7"], 2, "Did you mean 'blocks."),
        ([""], 2, "no such module"),
        (["blocks"], 2, r"blocks\.0"),
        (["blocks.1"], 3, "start 2 processes"),
        (["blocks.1"], 1, "start 2 processes"),
        (["blocks.1", "blocks.1"], 3, "name 2"),
    ],
)
def test_split_points_that_do_not_fit_are_refused(names, count, said) -> None:
    with pytest.raises(ValueError, match=said):
        check_split_points(Blocks(), names, count)


def test_a_module_is_left_as_it_was() -> None:
    model = Blocks()
    inputs = torch.randn(2, 4)
    wanted = model(inputs)
    pipe = split_at(model, ["blocks.1", "blocks.2"], (inputs,))
    assert pipe.num_stages == 3
    assert not {"forward", "_orig_forward"} & model.blocks[1].__dict__.keys()
    assert torch.equal(model(inputs), wanted)


def test_what_can_not_be_traced_says_so() -> None:
    class Branching(Blocks):
        def forward(self, value):
            return super().forward(value if value.sum() > 0 else -value)

    with pytest.raises(RuntimeError, match="depends on the shapes"):
        split_at(Branching(), ["blocks.1"], (torch.randn(2, 4),))
