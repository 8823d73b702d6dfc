"""The planner on large models: 70 billion parameters on meta, work that grows with the model, plans of 1.15."""

from __future__ import annotations

import importlib.util
import json
from collections import OrderedDict
from pathlib import Path
from types import ModuleType

import pytest
import torch
from torch import nn

from accelerate.big_modeling.budget import as_budget
from accelerate.big_modeling.device_map import Plan, plan_within
from accelerate.big_modeling.planner import Planner, _LargestAfter
from accelerate.big_modeling.sizes import sizing
from accelerate.big_modeling.tree import Tree
from benchmarks.harness import RESULTS, WORKERS

GIB = 2**30
HIDDEN, INNER, KEYS, WORDS, LAYERS = 8192, 28672, 1024, 32000, 80


class Layer(nn.Module):
    """A layer of Llama 2 70B, as far as its weights go."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.o = (nn.Linear(HIDDEN, HIDDEN, bias=False) for _ in range(2))
        self.k, self.v = (nn.Linear(HIDDEN, KEYS, bias=False) for _ in range(2))
        self.gate, self.up = (nn.Linear(HIDDEN, INNER, bias=False) for _ in range(2))
        self.down = nn.Linear(INNER, HIDDEN, bias=False)
        self.norms = nn.ModuleList(nn.RMSNorm(HIDDEN) for _ in range(2))


def llama_70b() -> nn.Module:
    """Return the weights of Llama 2 70B in bf16, on meta."""
    with torch.device("meta"):
        parts = OrderedDict(
            embed=nn.Embedding(WORDS, HIDDEN),
            layers=nn.ModuleList(Layer() for _ in range(LAYERS)),
            norm=nn.RMSNorm(HIDDEN),
            head=nn.Linear(HIDDEN, WORDS, bias=False),
        )
        return nn.Sequential(parts).bfloat16()


def plan(budget: dict[int | str, int | str], **options: object) -> Plan:
    """Return the plan of that model."""
    return plan_within(as_budget(budget), llama_70b(), "Layer", **options)  # type: ignore[arg-type]


def test_seventy_billion_parameters_are_planned_as_by_hand() -> None:
    layer = 2 * (2 * HIDDEN * HIDDEN + 2 * HIDDEN * KEYS + 3 * HIDDEN * INNER + 2 * HIDDEN)
    words, norm = 2 * WORDS * HIDDEN, 2 * HIDDEN
    found = plan({0: "80GiB", 1: "40GiB", "cpu": "10GiB"})
    first = (80 * GIB - words - layer) // layer  # with room for one more, which passes through
    second = 40 * GIB // layer
    on_host = (10 * GIB - layer) // layer
    assert found.tree.root.size == LAYERS * layer + 2 * words + norm == 137_953_296_384
    assert found.used == {
        0: words + first * layer,
        1: second * layer,
        "cpu": on_host * layer,
        "disk": (LAYERS - first - second - on_host) * layer + norm + words,
    }
    devices = [found.device_map[f"layers.{index}"] for index in range(LAYERS)]
    assert devices == [0] * first + [1] * second + ["cpu"] * on_host + ["disk"] * (LAYERS - first - second - on_host)


@pytest.mark.parametrize(
    "budget",
    [{0: "24GiB", "cpu": "64GiB"}, {0: "1MiB", "cpu": "200GiB"}, {"cpu": "16GiB"}, dict.fromkeys(range(8), "20GiB")],
    ids=str,
)
def test_no_budget_is_exceeded_and_nothing_is_left_out(budget: dict) -> None:
    found = plan(budget)
    assert all(found.used[device] <= limit for device, limit in found.budget.items())
    assert sum(found.used.values()) == found.tree.root.size
    whole = {node.name for node in found.tree.nodes if node.whole}
    placed = {name for name in whole if any(f"{name}.".startswith(f"{each}.") for each in found.device_map)}
    assert placed == whole
    assert [name for name in found.device_map if name.startswith("layers.") and name.count(".") > 1] == []


def test_every_decision_can_be_printed() -> None:
    found = plan({0: "24GiB", "cpu": "64GiB"})
    said = [str(each) for each in found.decisions]
    assert said[0] == "embed (500.0 MiB) -> 0 (room 22.4 GiB, 1.6 GiB kept for the largest layer to come)"
    placed = [each.name for each in found.decisions if each.action == "placed"]
    assert placed == list(found.device_map)
    assert [line for line in said if "does not fit on 0" in line] != []


def wide(count: int, *, tied: bool) -> nn.Module:
    """Return blocks of a layer each, twice as many; those of the second half have the weights of the first if tied."""
    with torch.device("meta"):
        first = [nn.Sequential(nn.Linear(4, 4, bias=False)) for _ in range(count)]
        second = [nn.Sequential(nn.Linear(4, 4, bias=False)) for _ in range(count)]
    for one, other in zip(first, second if tied else [], strict=tied):
        other[0].weight = one[0].weight
    return nn.ModuleList([*first, *second])


@pytest.mark.parametrize("tied", [False, True], ids=["", "tied"])
def test_work_grows_with_the_model_and_no_faster(tied: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    built: list[int] = []
    original = _LargestAfter._build
    monkeypatch.setattr(_LargestAfter, "_build", lambda self: (built.append(1), original(self))[1])

    def work(count: int) -> float:
        built.clear()
        tree = Tree(wide(count, tied=tied), frozenset(), sizing(None, None))
        size = int(tree.root.size)
        planner = Planner(tree, {0: size // 3, 1: size // 3, "cpu": size}).run()
        return (len(planner.decisions) + len(tree.nodes) * len(built)) / count

    assert work(400) <= 1.1 * work(100)


@pytest.fixture(scope="module")
def worker() -> ModuleType:
    """Return the models, the budgets and the judge of the benchmark."""
    pytest.importorskip("transformers", reason="builds the models from their configurations")
    spec = importlib.util.spec_from_file_location("planner_worker", WORKERS / "planner.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_no_plan_of_the_benchmark_is_worse_than_that_of_1_15() -> None:
    found = json.loads(Path(RESULTS / "plans.json").read_text())
    assert found["worse"] == []
    assert len(found["plans"]) >= 180


@pytest.mark.parametrize("name", ["gpt2-xl", "t5-3b", "bert-large", "bart-large"])
@pytest.mark.filterwarnings("ignore")
def test_plans_are_still_no_worse(name: str, worker: ModuleType) -> None:
    from benchmarks.planner import is_worse

    recorded = json.loads(Path(RESULTS / "plans.json").read_text())["plans"]
    model = worker.build(name)
    worse = [row for row in worker.BUDGETS if is_worse(worker.plan(model, row), recorded[f"{name}, {row}"]["1.15.0"])]
    assert worse == []
