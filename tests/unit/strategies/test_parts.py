"""Models cut into parts, without processes: run one after the other, the parts compute what the model does."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from accelerate.base.messages import forget_warnings
from accelerate.config.schedules import SCHEDULES
from accelerate.strategies.axes.elsewhere import is_elsewhere, let_go, owners_of, tie_again
from accelerate.strategies.axes.outline import Outline
from accelerate.strategies.axes.parts import Cut, Part
from accelerate.strategies.axes.schedules import rank_of
from accelerate.strategies.fsdp2.recompute import recompute

CPU = torch.device("cpu")


class Block(nn.Module):
    """A layer that looks at values, which can't be traced."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor, *, factor: float = 1.0, kept: Any = None) -> torch.Tensor:
        if kept is not None:
            kept.append(x)
            return self.layer(x)
        if self.layer.weight.device.type == "cpu" and float(self.layer.weight.detach().sum()) == 0.25:
            return x
        return torch.tanh(self.layer(x)) * factor


class Model(nn.Module):
    """What happens around blocks: a scale, a mask that later blocks take, a frozen beginning, constants."""

    def __init__(self) -> None:
        super().__init__()
        self.frozen = nn.Linear(4, 4)
        self.layers = nn.ModuleList(Block() for _ in range(4))
        self.scale = nn.Parameter(torch.full((4,), 0.5))
        self.register_buffer("shift", torch.arange(4.0))
        self.drop = nn.Dropout(0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            x = self.frozen(x)
        mask = x > 0
        for number, layer in enumerate(self.layers):
            x = x + layer(x * mask * self.scale, factor=number + 1.0)
        x = self.drop(x) + self.shift + torch.tensor([1.0, 2.0, 3.0, 4.0])
        return nn.functional.dropout(x, 0.5, self.training)


class Summed(nn.Module):
    """A model with a loss."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor]:
        return (self.model(x).square().mean().clone(),)


def cut(model: nn.Module, points: list[str], training: bool = False, outline: Outline | None = None) -> list[Part]:
    outline = outline or Outline(model, points)
    traced, calls = outline.trace(lambda copy: Summed(copy).train(training), [torch.zeros(3, 4)])
    found = Cut(traced, calls, model, "model.")
    parts = [Part(number) for number in range(found.count)]
    for part in parts:
        part.add(found.body(part.number, part, CPU), training)
        part.train(training)
    return parts


def run(parts: list[Part], x: torch.Tensor) -> torch.Tensor:
    values: Any = ()
    for part in parts:
        values = part(*values, input_0=x)
        values = values if part is parts[-1] or isinstance(values, tuple) else (values,)
    return values


def test_parts_compute_what_the_model_does() -> None:
    torch.manual_seed(0)
    model, x = Model().eval(), torch.randn(3, 4)
    parts = cut(model, ["layers.1", "layers.3"])
    expected = model(x).square().mean()
    found = run(parts, x)
    torch.testing.assert_close(found, expected)
    expected.backward()
    wanted = {name: each.grad for name, each in model.named_parameters()}
    model.zero_grad()
    found.backward()
    for name, each in model.named_parameters():
        torch.testing.assert_close(each.grad, wanted[name], msg=name)


def test_parts_have_the_tensors_of_the_model() -> None:
    model = Model()
    first, second = cut(model, ["layers.2"])
    names = {each: name for name, each in model.named_parameters()}
    assert {names[each] for each in second.parameters()} == {
        "scale",
        *(f"layers.{number}.layer.{key}" for number in (2, 3) for key in ("weight", "bias")),
    }
    assert "frozen.weight" in {names[each] for each in first.parameters()}
    assert any(each is model.shift for each in second.buffers())
    assert not any(each is model.shift for each in first.buffers())


def test_training_and_evaluation_are_cut_apart() -> None:
    torch.manual_seed(0)
    model, x = Model(), torch.randn(3, 4)
    parts = cut(model, ["layers.1"], training=True)
    torch.manual_seed(1)
    expected = model.train()(x).square().mean()
    torch.manual_seed(1)
    torch.testing.assert_close(run(parts, x), expected)


def test_the_outline_is_of_the_model_before_it_was_changed() -> None:
    model, x = Model().eval(), torch.randn(3, 4)
    outline = Outline(model, ["layers.1"])
    calls: list[int] = []
    for layer in model.layers:
        layer.register_forward_hook(lambda *_: calls.append(1))
    model.half()
    parts = cut(model, ["layers.1"], outline=outline)
    calls.clear()
    model.float()
    torch.testing.assert_close(run(parts, x), model(x).square().mean())
    assert len(calls) == 8


def test_blocks_that_are_computed_again_stay_so() -> None:
    model, x = Model().eval(), torch.randn(3, 4)
    recompute(model.layers)
    calls: list[int] = []
    model.layers[3].layer.register_forward_hook(lambda *_: calls.append(1))
    parts = cut(model, ["layers.1"])
    calls.clear()  # hooks see the shapes of tracing too
    run(parts, x).backward()
    assert len(calls) == 2


class WithObject(Model):
    """Blocks that are given an object which they change."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        kept = Kept()
        for layer in self.layers:
            x = layer(x, kept=kept)
        return x


class Kept(list):
    """What pytrees don't look into."""


def test_what_is_no_tensor_is_traced_through_with_a_warning() -> None:
    forget_warnings()
    model, x = WithObject(), torch.randn(3, 4)
    with pytest.warns(UserWarning, match="take or return a Kept"):
        parts = cut(model, ["layers.2"])
    torch.testing.assert_close(run(parts, x), model(x).square().mean())


class Twice(Model):
    """A block that runs again after others."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers[1](self.layers[2](self.layers[1](self.layers[0](x))))


def test_a_block_may_run_twice_but_begin_one_part_only() -> None:
    model, x = Twice(), torch.randn(3, 4)
    torch.testing.assert_close(run(cut(model, ["layers.2"]), x), model(x).square().mean())
    assert len(cut(model, ["layers.1"])) == 3  # so it is refused


class Looks(Model):
    """A forward that hangs on values."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) if float(x.sum()) > 0 else x


def test_what_cant_be_traced_is_said() -> None:
    with pytest.raises(RuntimeError, match="into a module of its own"):
        cut(Looks(), ["layers.1"])


@pytest.mark.parametrize(
    ("name", "ranks"),
    [("1f1b", [0, 1]), ("interleaved", [0, 1, 0, 1]), ("zbv_zero_bubble", [0, 1, 1, 0]), ("dual_pipe_v", [0, 1, 1, 0])],
)
def test_which_rank_has_a_stage(name: str, ranks: list[int]) -> None:
    assert [rank_of(stage, 2, SCHEDULES[name]) for stage in range(len(ranks))] == ranks


def test_what_is_let_go_takes_no_memory_and_keeps_its_shape() -> None:
    parameter = nn.Parameter(torch.ones(3, 4))
    assert not is_elsewhere(parameter)
    let_go(parameter)
    assert is_elsewhere(parameter)
    assert parameter.shape == (3, 4)
    assert parameter.untyped_storage().nbytes() == 4


def test_tied_parameters_are_tied_to_what_one_has_become() -> None:
    model = nn.ModuleList([nn.Linear(2, 2), nn.Linear(2, 2)])
    model[1].weight = model[0].weight
    before = owners_of(model)
    old = model[0].weight
    new = model[1].weight = nn.Parameter(torch.zeros(2, 2))
    became = tie_again(before.items())
    assert model[0].weight is model[1].weight is new
    assert became[old] is new
    assert became[model[0].bias] is model[0].bias
