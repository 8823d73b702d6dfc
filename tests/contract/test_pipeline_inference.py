"""A model that is spread over two and four processes gives what it gives on one."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest
import torch
from torch import nn

from accelerate import PartialState, prepare_pippy
from accelerate.inference import build_pipeline, find_pippy_batch_size, generate_device_map

from .conftest import world_of


class Result(NamedTuple):
    """What the model returns: of the last part, of the first, and something that is no tensor."""

    value: torch.Tensor
    embedded: torch.Tensor
    name: str


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 2 * width)
        self.down = nn.Linear(2 * width, width)

    def forward(self, value: torch.Tensor, mask: torch.Tensor, shift: torch.Tensor) -> torch.Tensor:
        return value + self.down(torch.relu(self.up(self.norm(value) + shift))) * mask.unsqueeze(-1)


class Net(nn.Module):
    """Every block uses the mask and the shift; the head is tied to the embedding, in another part of the pipeline."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, 8)
        self.blocks = nn.ModuleList([Block(8) for _ in range(5)])
        self.head = nn.Linear(8, 11, bias=False)
        self.head.weight = self.embed.weight
        self.dropout = nn.Dropout(0.5)

    def forward(self, tokens: torch.Tensor, *, mask: torch.Tensor, shift: torch.Tensor, twice: bool = False) -> Result:
        embedded = value = self.embed(tokens)
        for block in self.blocks:
            value = block(self.dropout(value), mask, shift)
        return Result(self.head(value) * (2 if twice else 1), embedded, "net")


def net() -> Net:
    torch.manual_seed(0)
    return Net()


def batch(size: int, length: int = 3, seed: int = 1) -> tuple[torch.Tensor, dict[str, Any]]:
    generator = torch.Generator().manual_seed(seed)
    mask = torch.ones(size, length)
    mask[:, -1] = 0
    kwargs = {"mask": mask, "shift": torch.randn(8, generator=generator), "twice": True}
    return torch.randint(0, 11, (size, length), generator=generator), kwargs


def run(sizes: list[int], **options: Any) -> tuple[list[str], list[Any]]:
    state = PartialState(cpu=True)
    tokens, kwargs = batch(4)
    model = prepare_pippy(net(), example_args=(tokens,), example_kwargs=kwargs, **options)
    outputs = []
    for size in sizes:
        inputs, more = batch(size, seed=size)
        # What the others pass does not count.
        outputs.append(model(inputs, **more) if state.is_main_process else model())
    return model.hf_split_points, outputs


SIZES = [4, 1, 7, 4, 12]


@pytest.mark.parametrize(
    ("size", "chunks", "gather"),
    [(2, None, False), (2, 1, True), (2, 4, True), (4, None, True), (4, 2, False)],
)
def test_outputs_are_those_of_the_whole_model(size, chunks, gather) -> None:
    ranks = world_of(size).run(run, SIZES, num_chunks=chunks, gather_output=gather)
    for rank, (points, outputs) in enumerate(ranks):
        assert len(points) == size - 1
        for batch_size, output in zip(SIZES, outputs, strict=True):
            if rank < size - 1 and not gather:
                assert output is None
                continue
            tokens, kwargs = batch(batch_size, seed=batch_size)
            with torch.no_grad():
                wanted = net().eval()(tokens, **kwargs)
            assert type(output) is Result
            assert output.name == "net"
            torch.testing.assert_close(output.value, wanted.value)
            torch.testing.assert_close(output.embedded, wanted.embedded)


@pytest.mark.parametrize(
    ("size", "points"), [(2, ["blocks.3"]), (4, ["blocks.1", "blocks.2.up", "head"]), (2, "blocks.4.down")]
)
def test_split_points_can_be_named(size, points) -> None:
    ranks = world_of(size).run(run, [5], split_points=points, gather_output=True)
    tokens, kwargs = batch(5, seed=5)
    with torch.no_grad():
        wanted = net().eval()(tokens, **kwargs)
    for found, (output,) in ranks:
        assert found == ([points] if isinstance(points, str) else points)
        torch.testing.assert_close(output.value, wanted.value)


class Turned(nn.Module):
    """What goes from one part to the next is a view that is not contiguous, and several tensors of one shape."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(3, 3)

    def forward(self, inputs: torch.Tensor, other: torch.Tensor) -> dict[str, torch.Tensor]:
        value = self.first(inputs).transpose(1, 2)
        return {"b": self.second(value + 1) * 2 - other, "a": value[:, ::2], "c": inputs}


def turned() -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    PartialState(cpu=True)
    torch.manual_seed(0)
    model, inputs, other = Turned().eval(), torch.randn(4, 3, 4), torch.randn(4, 4, 3)
    with torch.no_grad():
        wanted = model(inputs, other)
    model = prepare_pippy(model, ["second"], example_args=(inputs, other), gather_output=True)
    return wanted, model(inputs, other)


def test_views_pass_from_part_to_part(pair) -> None:
    for wanted, found in pair.run(turned):
        assert found.keys() == wanted.keys()
        for name, each in wanted.items():
            torch.testing.assert_close(found[name], each, msg=name)


def refused(example: dict[str, Any], calls: list[tuple[Any, ...]], **options: Any) -> str:
    """Return what is said about a preparation, or about calls after one."""
    state = PartialState(cpu=True)
    tokens, kwargs = batch(4)
    options = {"example_args": (tokens,), "example_kwargs": kwargs, **example, **options}
    try:
        model = prepare_pippy(options.pop("model", net)(), **options)
        for inputs, more in calls:
            model(*inputs, **more) if state.is_main_process else model()
    except ValueError as error:
        return str(error)
    return ""


class Loss(Net):
    def forward(self, tokens: torch.Tensor, **kwargs: Any) -> Any:
        return super().forward(tokens, **kwargs).value.mean()


LONGER = batch(4, length=5)
OTHER = (batch(4)[0], {**batch(4)[1], "twice": False})
LESS = (batch(4)[0], {"mask": batch(4)[1]["mask"]})
RAGGED = (batch(4)[0], {**batch(4)[1], "mask": torch.ones(3, 3)})


@pytest.mark.parametrize(
    ("example", "calls", "said"),
    [
        ({"split_points": ["blocks.33"]}, [], "blocks.3"),
        ({"split_points": ["blocks.1", "blocks.2"]}, [], "start 3 processes"),
        ({"split_points": ["dropout"]}, [], "several times"),
        ({"num_chunks": 0}, [], "num_chunks=0"),
        ({"example_args": (), "example_kwargs": None}, [], "example_args"),
        ({"model": Loss}, [], "without labels"),
        ({}, [((LONGER[0],), LONGER[1])], "shape (4, 5)"),
        ({}, [((OTHER[0],), OTHER[1])], "True in the example"),
        ({}, [((LESS[0],), LESS[1])], "laid out"),
        ({}, [((RAGGED[0],), RAGGED[1])], "[3, 4] samples"),
    ],
    ids=["name", "count", "begins", "chunks", "example", "loss", "length", "constant", "missing", "ragged"],
)
def test_what_does_not_fit_is_refused_on_every_process(pair, example, calls, said) -> None:
    answers = pair.run(refused, example, calls)
    assert [said in answer for answer in answers] == [True, True], answers


def test_a_refused_batch_leaves_the_pipeline_usable(pair) -> None:
    assert pair.run(usable_after_refusal) == [True, True]


def usable_after_refusal() -> bool:
    state = PartialState(cpu=True)
    tokens, kwargs = batch(4)
    model = prepare_pippy(net(), example_args=(tokens,), example_kwargs=kwargs, gather_output=True)
    with pytest.raises(ValueError, match="laid out"):
        model()
    output = model(tokens, **kwargs) if state.is_main_process else model()
    with torch.no_grad():
        return torch.allclose(output.value, net().eval()(tokens, **kwargs).value, atol=1e-6)


def test_one_process_runs_the_model_as_it_is() -> None:
    tokens, kwargs = batch(4)
    model = net()
    with pytest.warns(UserWarning, match="one process"):
        assert prepare_pippy(model, example_args=(tokens,), example_kwargs=kwargs) is model
    assert model.hf_split_points == []
    assert not model.training
    assert model(tokens, **kwargs).value.shape == (4, 3, 11)


def test_parts_of_it() -> None:
    assert find_pippy_batch_size((3, torch.ones(5, 2)), {}) == 5
    assert find_pippy_batch_size((), {"x": torch.ones(2)}) == 2
    assert find_pippy_batch_size((), {}) is None
    stages = generate_device_map(net(), 2)
    assert set(stages.values()) == {0, 1}
    assert set(generate_device_map(net(), 2, max_memory={0: 3000, "cpu": "1GiB"}).values()) == {0, "cpu"}


def test_a_pipeline_can_be_built_by_itself(pair) -> None:
    first, last = pair.run(built)
    assert first is None
    tokens, kwargs = batch(4)
    with torch.no_grad():
        torch.testing.assert_close(last, net().eval()(tokens, **kwargs).value)


def built() -> torch.Tensor | None:
    PartialState(cpu=True)
    tokens, kwargs = batch(4)
    output = build_pipeline(net().eval(), ["blocks.2"], (tokens,), kwargs, 2)(tokens, **kwargs)
    return None if output is None else output.value
