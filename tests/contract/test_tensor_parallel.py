"""Layers divided over processes, alone, in replicas and with sharding: the weights are those of one process."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel

from .conftest import world_of
from .sharded import (
    PLAN,
    V2,
    WHOLE_PLAN,
    Case,
    accelerator_for,
    batches,
    build,
    groups,
    llama,
    local,
    loss_of,
    micro_batches,
    reference_case,
    train_case,
)

ALONE = {"tp_size": 2}
REPLICAS = {"tp_size": 2, "dp_replicate_size": 2}
SHARDS = {"tp_size": 2, "dp_shard_size": 2}
STYLES = {**PLAN, "layers.*.up": ColwiseParallel(), "layers.*.down": RowwiseParallel()}

CASES = {
    "alone, clipped": (2, Case(plugin=None, mesh=ALONE, plan=PLAN, clip=0.1, updates=20)),
    "embeddings and output too": (2, Case(plugin=None, mesh=ALONE, plan=WHOLE_PLAN, clip=0.1, steps=2)),
    "tied embeddings": (2, Case(plugin=None, mesh=ALONE, plan=WHOLE_PLAN, tied=True, clip=0.1)),
    "styles of torch": (2, Case(plugin=None, mesh=ALONE, plan=STYLES)),
    "other seeds on other ranks": (2, Case(plugin=None, mesh=ALONE, plan=PLAN, seeds=True)),
    "the others are empty": (2, Case(plugin=None, mesh=ALONE, plan=PLAN, meta=True)),
    "parts are frozen": (2, Case(plugin=None, mesh=ALONE, plan=PLAN, frozen=("layers.0", "norm"))),
    "over four": (4, Case(plugin=None, mesh={"tp_size": 4}, plan=WHOLE_PLAN, clip=0.1)),
    "replicas, accumulation": (4, Case(plugin=None, mesh=REPLICAS, plan=PLAN, clip=0.1, steps=2, updates=20)),
    "replicas, no_sync": (
        4,
        Case(plugin=None, mesh=REPLICAS, plan=WHOLE_PLAN, tied=True, clip=0.1, no_sync=True, steps=2),
    ),
    "shards, accumulation": (4, Case(plugin=V2, mesh=SHARDS, plan=PLAN, clip=0.1, steps=2, updates=20)),
    "shards, tied embeddings": (4, Case(plugin=V2, mesh=SHARDS, plan=WHOLE_PLAN, clip=0.1, tied=True, seeds=True)),
    "shards, checkpointing": (
        4,
        Case(
            plugin={**V2, "cpu_ram_efficient_loading": True, "activation_checkpointing": True},
            mesh=SHARDS,
            plan=PLAN,
            meta=True,
        ),
    ),
}


@pytest.mark.parametrize(("size", "case"), CASES.values(), ids=CASES.keys())
def test_weights_are_those_of_one_process(size, case):
    """fp32: weights and norms equal within 1e-5."""
    outcomes = world_of(size).run(train_case, case)
    expected = reference_case(case)
    assert outcomes[0]["weights"].keys() == expected["weights"].keys()
    for name, weight in expected["weights"].items():
        torch.testing.assert_close(outcomes[0]["weights"][name], weight, atol=1e-5, rtol=0)
    for outcome in outcomes:
        assert outcome["norms"] == pytest.approx(expected["norms"], rel=1e-5)
        assert outcome["held"] < 0.7 * expected["held"]


def loaded(case: Case) -> dict[str, Any]:
    """Train on a loader, and gather what it gave for metrics."""
    accelerator = accelerator_for(case)
    model = build(case)
    optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    loader = torch.utils.data.DataLoader(torch.arange(10), batch_size=2)
    model, optimizer, scheduler, loader = accelerator.prepare(model, optimizer, scheduler, loader)
    seen, gathered = [], []
    tokens = batches(1, 8)[0]
    for batch in loader:
        seen += batch.tolist()
        gathered += accelerator.gather_for_metrics(batch).tolist()
        accelerator.backward(loss_of(model, tokens))
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
    return {
        "seen": seen,
        "gathered": gathered,
        "rate": optimizer.param_groups[0]["lr"],
        "rank": (accelerator.tensor_parallel_rank, accelerator.data_parallel_rank),
        "label": str(accelerator.distributed_type),
    }


def test_ranks_that_divide_a_model_see_the_same_data():
    found = world_of(4).run(loaded, Case(plugin=None, mesh=REPLICAS, plan=PLAN))
    halves = [[0, 1, 4, 5, 8, 9], [2, 3, 6, 7, 0, 1]]
    assert [each["seen"] for each in found] == [halves[0], halves[0], halves[1], halves[1]]
    assert [each["rank"] for each in found] == [(0, 0), (1, 0), (0, 1), (1, 1)]
    for each in found:
        assert each["gathered"] == list(range(10))
        assert each["label"] == "DistributedType.MULTI_CPU"
        assert each["rate"] == pytest.approx(1e-3 * 0.5**6)  # three steps of two replicas


def clipped(case: Case) -> float:
    accelerator = accelerator_for(case)
    model = build(case)
    model, _ = accelerator.prepare(model, torch.optim.SGD(groups(model), lr=0.1))
    accelerator.backward(loss_of(model, micro_batches(case, 0, 2)[0]))
    accelerator.clip_grad_value_(model.parameters(), 1e-3)
    return max(local(each.grad).abs().max().item() for each in model.parameters())


def test_values_are_clipped(pair):
    assert pair.run(clipped, Case(plugin=None, mesh=ALONE, plan=PLAN)) == [pytest.approx(1e-3)] * 2


def refusal(case: Case, mistake: str = "") -> str:
    """Return the error that a mistake gives on this rank."""
    try:
        accelerator = accelerator_for(case)
        model = build(case)
        if mistake == "optimizer later":
            optimizer = torch.optim.SGD(model.parameters())
            accelerator.prepare(model)
            accelerator.prepare(optimizer)
        elif mistake == "wrapped":
            accelerator.prepare(torch.nn.parallel.DistributedDataParallel(model))
        elif mistake == "rest":
            model.layers[0].up = torch.nn.Linear(8, 15)
            accelerator.prepare(model)
        else:
            accelerator.prepare(model)
    except (ValueError, NotImplementedError) as error:
        return str(error)
    return "nothing was refused"


REFUSALS = {
    "no plan": (Case(plugin=None, mesh=ALONE), "", "TorchTensorParallelConfig(plan={...})"),
    "no such module": (Case(plugin=None, mesh=ALONE, plan={"layer.*.up": "colwise"}), "", "no module of Language"),
    "no such style": (Case(plugin=None, mesh=ALONE, plan={"head": "colwis"}), "", "Did you mean 'colwise'?"),
    "half of what is tied": (
        Case(plugin=None, mesh=ALONE, plan={"embeddings": "rowwise"}, tied=True),
        "",
        "add 'head' to the plan",
    ),
    "parts that are not equal": (Case(plugin=None, mesh=ALONE, plan={"layers.0.up": "colwise"}), "rest", "multiple"),
    "optimizer later": (
        Case(plugin=None, mesh=ALONE, plan=PLAN),
        "optimizer later",
        "pass the model and its optimizers to `prepare` together",
    ),
    "wrapped": (Case(plugin=None, mesh=ALONE, plan=PLAN), "wrapped", "distributed already"),
}


@pytest.mark.parametrize(("case", "mistake", "text"), REFUSALS.values(), ids=REFUSALS.keys())
def test_what_is_refused(pair, case, mistake, text):
    for error in pair.run(refusal, case, mistake):
        assert text in error


def test_the_first_generation_of_fsdp_shares_no_mesh():
    for error in world_of(4).run(refusal, Case(plugin={}, mesh=SHARDS, plan=PLAN)):
        assert "with fsdp_version=1" in error


def test_a_mesh_has_views_by_purpose():
    found = world_of(4).run(views, Case(plugin=None, mesh=REPLICAS, plan=PLAN))
    assert found == [
        {"data": [0, 2], "loss": [0, 2], "shard": None, "tp": [0, 1]},
        {"data": [1, 3], "loss": [1, 3], "shard": None, "tp": [0, 1]},
        {"data": [0, 2], "loss": [0, 2], "shard": None, "tp": [2, 3]},
        {"data": [1, 3], "loss": [1, 3], "shard": None, "tp": [2, 3]},
    ]


def views(case: Case) -> dict[str, Any]:
    layout = accelerator_for(case).parallelism_config
    meshes = {purpose: layout.view(purpose) for purpose in ("data", "loss", "shard", "tp")}
    return {purpose: None if mesh is None else mesh.mesh.tolist() for purpose, mesh in meshes.items()}


def divided_elsewhere(case: Case, folder: str) -> str:
    try:
        pretrained(case, folder, True)
    except ValueError as error:
        return str(error)
    return "nothing was refused"


@pytest.mark.libraries
def test_a_model_that_was_divided_otherwise_is_refused(tmp_path):
    llama().save_pretrained(tmp_path)
    for error in world_of(4).run(divided_elsewhere, Case(plugin=None, mesh=REPLICAS), str(tmp_path)):
        assert "divided over 4 ranks with tp_size=2" in error
        assert "load it without tp_plan" in error


def pretrained(case: Case, folder: str, before: bool) -> dict[str, Any]:
    """Train a small LLaMA, divided by transformers while loading or by its own plan; return its weights."""
    from transformers import LlamaForCausalLM

    accelerator = accelerator_for(case)
    options = {"tp_plan": "auto", "device_mesh": accelerator.torch_device_mesh["tp"]} if before else {}
    model = LlamaForCausalLM.from_pretrained(folder, **options)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer = accelerator.prepare(model, optimizer)
    norms = []
    for tokens in batches(3, 8):
        accelerator.backward(model(input_ids=tokens, labels=tokens).loss)
        norms.append(float(accelerator.clip_grad_norm_(model.parameters(), 0.5)))
        optimizer.step()
        optimizer.zero_grad()
    return {"weights": accelerator.get_state_dict(model), "norms": norms}


OF_TRANSFORMERS = {
    "divided while loading": (2, Case(plugin=None, mesh=ALONE), True),
    "divided by us": (2, Case(plugin=None, mesh=ALONE), False),
    "divided by us, replicas": (4, Case(plugin=None, mesh=REPLICAS), False),
    "divided by us, shards": (4, Case(plugin=V2, mesh=SHARDS), False),
}


@pytest.mark.libraries
@pytest.mark.parametrize(("size", "case", "before"), OF_TRANSFORMERS.values(), ids=OF_TRANSFORMERS.keys())
def test_a_model_of_transformers(tmp_path, size, case, before):
    model = llama()
    model.save_pretrained(tmp_path)
    outcomes = world_of(size).run(pretrained, case, str(tmp_path), before)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    norms = []
    for tokens in batches(3, 8):
        model(input_ids=tokens, labels=tokens).loss.backward()
        norms.append(float(torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)))
        optimizer.step()
        optimizer.zero_grad()
    for outcome in outcomes:
        assert outcome["norms"] == pytest.approx(norms, rel=1e-5)
    for name, weight in model.state_dict().items():
        torch.testing.assert_close(outcomes[0]["weights"][name], weight, atol=1e-5, rtol=0)
