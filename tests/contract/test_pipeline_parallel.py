"""Layers, one after the other, divided over processes, alone and in replicas: the weights are those of one process."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from accelerate.strategies.fsdp2.recompute import recompute

from .conftest import world_of
from .sharded import (
    PLAN,
    V2,
    VOCABULARY,
    WHOLE_PLAN,
    Case,
    batches,
    build,
    groups,
    library,
    llama,
    local,
    loss_of,
    micro_batches,
    reference_case,
    share_of,
)

ALONE, REPLICAS = {"pp_size": 2}, {"pp_size": 2, "dp_replicate_size": 2}
SHARDED, DIVIDED = {"pp_size": 2, "dp_shard_size": 2}, {"pp_size": 2, "tp_size": 2}


def token_loss(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.cross_entropy(logits.reshape(-1, VOCABULARY), labels.reshape(-1))


def accelerator_for(case: Case, settings: dict[str, Any]) -> Any:
    from accelerate import Accelerator, FullyShardedDataParallelPlugin, ParallelismConfig
    from accelerate.utils import PipelineParallelConfig, TorchTensorParallelConfig

    handler = PipelineParallelConfig(**{"loss": token_loss, **settings})
    tensor = None if case.plan is None else TorchTensorParallelConfig(plan=case.plan)
    layout = ParallelismConfig(**case.mesh, pp_handler=handler, tp_handler=tensor)
    sharded = "dp_shard_size" in case.mesh
    return Accelerator(
        cpu=True,
        mixed_precision=case.precision,
        gradient_accumulation_steps=case.steps,
        parallelism_config=layout,
        fsdp_plugin=FullyShardedDataParallelPlugin(**case.plugin) if sharded else None,
        **case.options,
    )


def train(case: Case, settings: dict[str, Any], folder: str | None = None, recomputed: bool = False) -> dict[str, Any]:
    """Train on this rank; return the whole weights (rank 0), norms, losses, and what a rank holds."""
    accelerator = accelerator_for(case, settings)
    model = build(case, accelerator.process_index)
    if recomputed:
        recompute(model.layers)
    optimizer = torch.optim.SGD(groups(model), lr=0.1, momentum=0.9)
    model, optimizer = accelerator.prepare(model, optimizer)
    found: list[float] = []
    losses: list[float] = []
    calls = counted(model)
    batches_here = micro_batches(case, *share_of(accelerator, accelerator.torch_device_mesh))
    for number, tokens in enumerate(batches_here, 1):
        if folder is not None and number == len(batches_here) // 2 + 1:
            accelerator.save_state(folder)
            for parameter in here(model):
                local(parameter).data.zero_()
            optimizer.optimizer.state.clear()
            accelerator.load_state(folder)
        with accelerator.accumulate(model):
            loss = model(tokens[:, :-1], target=tokens[:, 1:])
            accelerator.backward(loss)
            losses.append(loss.item())
            if accelerator.sync_gradients and case.clip is not None:
                found.append(float(accelerator.clip_grad_norm_(model.parameters(), case.clip)))
            optimizer.step()
            optimizer.zero_grad()
    model.eval()
    with torch.no_grad():
        tokens = batches(1, 8)[0]
        evaluated = model(tokens[:, :-1], target=tokens[:, 1:]).item()
    return {
        "weights": accelerator.get_state_dict(model),
        "norms": found,
        "held": sum(local(parameter).numel() for parameter in here(model)),
        "losses": losses,
        "evaluated": evaluated,
        "calls": calls,
        "graphs": torch._dynamo.utils.counters["stats"]["unique_graphs"],
    }


def here(model: torch.nn.Module) -> list[torch.Tensor]:
    """Return the parameters whose values this rank has."""
    return [parameter for parameter in model.parameters() if not getattr(parameter, "is_elsewhere", False)]


def counted(model: torch.nn.Module) -> dict[str, int]:
    """Return how often blocks compute, by their name; it is counted on from now."""
    calls: dict[str, int] = {}
    for name, module in model.named_modules():
        if name.endswith("up"):
            module.register_forward_hook(lambda *_, name=name: calls.update({name: calls.get(name, 0) + 1}))
    return calls


CASES = {
    "1f1b, clipped": (2, Case(mesh=ALONE, clip=0.1, updates=20), {"num_microbatches": 4}),
    "gpipe, accumulation": (2, Case(mesh=ALONE, clip=0.1, steps=2), {"schedule": "gpipe"}),
    "interleaved": (2, Case(mesh=ALONE, clip=0.1), {"schedule": "interleaved"}),
    "tied embeddings": (2, Case(mesh=ALONE, clip=0.1, tied=True), {}),
    "named stages": (2, Case(mesh=ALONE), {"split_points": ["layers.2"]}),
    "other seeds, parts are frozen": (2, Case(mesh=ALONE, clip=0.1, seeds=True, frozen=("layers.0", "norm")), {}),
    "over four": (4, Case(mesh={"pp_size": 4}, clip=0.1), {"split_points": [f"layers.{n}" for n in range(3)]}),
    "replicas": (4, Case(mesh=REPLICAS, clip=0.1, steps=2, updates=10), {}),
    "breadth first": (2, Case(mesh=ALONE, clip=0.1), {"schedule": "looped_bfs"}),
    "zero bubble": (2, Case(mesh=ALONE, clip=0.1), {"schedule": "interleaved_zero_bubble"}),
    "folded, tied embeddings": (2, Case(mesh=ALONE, clip=0.1, tied=True), {"schedule": "zbv_zero_bubble"}),
    "folded, both ways": (2, Case(mesh=ALONE, clip=0.1), {"schedule": "DualPipeV"}),
    "shards": (4, Case(mesh=SHARDED, clip=0.1, steps=2, updates=20), {}),
    "shards, tied embeddings": (4, Case(mesh=SHARDED, clip=0.1, tied=True), {"schedule": "gpipe"}),
    "shards, interleaved": (4, Case(mesh=SHARDED, clip=0.1), {"schedule": "interleaved"}),
    "shards, activation checkpointing": (
        4,
        Case(mesh=SHARDED, plugin={**V2, "activation_checkpointing": True}, frozen=("layers.0",)),
        {},
    ),
    "divided layers": (4, Case(mesh=DIVIDED, plan=PLAN, clip=0.1, steps=2, updates=20), {}),
    "divided layers, tied embeddings": (4, Case(mesh=DIVIDED, plan=WHOLE_PLAN, clip=0.1, tied=True), {}),
}


@pytest.mark.parametrize(("size", "case", "settings"), CASES.values(), ids=CASES.keys())
def test_weights_are_those_of_one_process(size, case, settings):
    """fp32: weights, norms and losses equal within 1e-5."""
    outcomes, expected = world_of(size).run(train, case, settings), reference_case(case)
    assert list(outcomes[0]["weights"]) == list(expected["weights"])
    for name, weight in expected["weights"].items():
        torch.testing.assert_close(outcomes[0]["weights"][name], weight, atol=1e-5, rtol=0)
    for outcome in outcomes:
        assert outcome["norms"] == pytest.approx(expected["norms"], rel=1e-5)
        assert outcome["held"] < expected["held"]
        assert outcome["evaluated"] == pytest.approx(_loss(expected["weights"], case), rel=1e-5)
    assert all(outcome["weights"] == {} for outcome in outcomes[1:])


def test_bf16(pair):
    """Micro-batches round otherwise than the batch: weights equal within 5e-3 after five updates."""
    case = Case(mesh=ALONE, precision="bf16")
    found, expected = pair.run(train, case, {})[0], reference_case(case)
    for name, weight in expected["weights"].items():
        torch.testing.assert_close(found["weights"][name], weight, atol=5e-3, rtol=0)


def _loss(weights: dict[str, Any], case: Case) -> float:
    model = build(case)
    model.load_state_dict(weights)
    return loss_of(model, batches(1, 8)[0]).item()


@pytest.mark.parametrize("recomputed", [False, True])
def test_activations_are_computed_again(pair, recomputed):
    """Four micro-batches, once to learn of shapes, and in the backward pass again."""
    case = Case(mesh=ALONE, clip=0.1, updates=1)
    outcomes, expected = pair.run(train, case, {}, recomputed=recomputed), reference_case(case)
    for name, weight in expected["weights"].items():
        torch.testing.assert_close(outcomes[0]["weights"][name], weight, atol=1e-5, rtol=0)
    calls = [count for outcome in outcomes for count in outcome["calls"].values()]
    assert len(calls) == 3
    assert all((count > 7) == recomputed for count in calls), calls


@pytest.mark.parametrize("regional", [False, True])
def test_parts_are_compiled(pair, regional):
    from accelerate.utils import TorchDynamoPlugin

    plugin = TorchDynamoPlugin(backend="aot_eager", use_regional_compilation=regional)
    case = Case(mesh=ALONE, clip=0.1, updates=1, options={"dynamo_plugin": plugin})
    outcomes, expected = pair.run(train, case, {}), reference_case(case)
    assert all(outcome["graphs"] > 0 for outcome in outcomes)
    for name, weight in expected["weights"].items():
        torch.testing.assert_close(outcomes[0]["weights"][name], weight, atol=1e-5, rtol=0)


def overflowing(steps: int) -> list[Any]:
    """Train in fp16; the gradients of one rank overflow in the first step."""
    accelerator = accelerator_for(Case(mesh=ALONE, precision="fp16"), {})
    model = build(Case())
    model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    handle = model.module.head.weight.register_hook(lambda gradient: gradient * float("inf"))
    found = []
    for tokens in batches(steps, 8):
        accelerator.backward(model(tokens[:, :-1], target=tokens[:, 1:]))
        optimizer.step()
        optimizer.zero_grad()
        found.append((optimizer.step_was_skipped, accelerator.scaler.get_scale()))
        handle.remove()
    return [*found, accelerator.get_state_dict(model)]


def test_fp16_skips_an_update_on_all_ranks(pair):
    """Weights equal those of fp32 within 2e-3 after four updates."""
    outcomes = pair.run(overflowing, 5)
    model = build(Case())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for tokens in batches(5, 8)[1:]:
        optimizer.zero_grad()
        loss_of(model, tokens).backward()
        optimizer.step()
    for *steps, _ in outcomes:
        assert [skipped for skipped, _ in steps] == [True, False, False, False, False]
        assert steps[-1][1] == 2.0**15
    for name, weight in model.state_dict().items():
        torch.testing.assert_close(outcomes[0][-1][name], weight, atol=2e-3, rtol=0)


def test_a_checkpoint_is_that_of_one_process(pair, tmp_path):
    case = Case(mesh=ALONE, updates=4, clip=0.1)
    found, expected = pair.run(train, case, {}, str(tmp_path))[0], reference_case(case)
    assert {"model.safetensors", "optimizer.bin"} <= {path.name for path in tmp_path.iterdir()}
    for name, weight in expected["weights"].items():
        torch.testing.assert_close(found["weights"][name], weight, atol=1e-5, rtol=0)


def adam(model: torch.nn.Module) -> torch.optim.Optimizer:
    """Return an optimizer with states of several kinds; biases of keys have gradients of noise, which eps quiets."""
    return torch.optim.AdamW(groups(model), lr=0.01, eps=1e-3)


def resumed(case: Case, settings: dict[str, Any], folder: str, begin: int, end: int) -> dict[str, Any]:
    """Do the updates from `begin` to `end`, from a checkpoint, and write one; return what `save_model` wrote."""
    from safetensors.torch import load_file

    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True) if case.mesh is None else accelerator_for(case, settings)
    model = build(case)
    model, optimizer = accelerator.prepare(model, adam(model))
    if begin:
        accelerator.load_state(f"{folder}/state")
    for tokens in micro_batches(case, *share_of(accelerator, accelerator.torch_device_mesh))[begin:end]:
        inputs, labels = tokens[:, :-1], tokens[:, 1:]
        loss = token_loss(model(inputs), labels) if case.mesh is None else model(inputs, target=labels)
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
    accelerator.save_state(f"{folder}/state")
    accelerator.save_model(model, f"{folder}/model")
    accelerator.wait_for_everyone()
    return load_file(f"{folder}/model/model.safetensors")


FOUR = {"split_points": [f"layers.{number}" for number in range(3)]}


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ((2, ALONE, {}), (1, None, {})),
        ((1, None, {}), (2, ALONE, {"schedule": "interleaved"})),
        ((4, SHARDED, {}), (2, ALONE, {})),
        ((4, {"pp_size": 4}, FOUR), (2, ALONE, {})),
        ((2, ALONE, {}), (4, SHARDED, {"schedule": "gpipe"})),
        ((4, DIVIDED, {}), (4, SHARDED, {})),
    ],
    ids=["2 to 1", "1 to 2", "shards to 2", "4 to 2", "2 to shards", "divided to shards"],
)
def test_a_run_goes_on_with_other_processes(tmp_path, before, after):
    """AdamW, so that its states count; the weights are those of a run that was not interrupted."""
    model = build(Case())
    optimizer = adam(model)
    for number, (size, mesh, settings) in enumerate((before, after)):
        plan = PLAN if mesh is DIVIDED else None
        case = Case(mesh=mesh, plan=plan, updates=6)
        outcomes = world_of(size).run(resumed, case, settings, str(tmp_path), 3 * number, 3 * number + 3)
    for tokens in micro_batches(Case(updates=6), 0, 1):
        loss_of(model, tokens).backward()
        optimizer.step()
        optimizer.zero_grad()
    for outcome in outcomes:
        for name, weight in model.state_dict().items():
            torch.testing.assert_close(outcome[name], weight, atol=1e-5, rtol=0)


def pretrained(mesh: dict[str, int], use_cache: bool) -> dict[str, Any]:
    """Train a small LLaMA that computes its own loss, and is divided as it says; return its weights."""
    accelerator = accelerator_for(Case(mesh=mesh), {"loss": None})
    model = llama()
    model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    share, shares = share_of(accelerator, accelerator.torch_device_mesh)
    for tokens in batches(3, 8):
        mine = tokens.chunk(shares)[share]
        accelerator.backward(model(input_ids=mine, labels=mine, use_cache=use_cache).loss)
        optimizer.step()
        optimizer.zero_grad()
    return accelerator.get_state_dict(model)


@pytest.mark.libraries
@pytest.mark.parametrize(
    ("size", "mesh", "use_cache"),
    [(2, ALONE, False), (2, ALONE, True), (4, SHARDED, False), (4, DIVIDED, False), (4, DIVIDED, True)],
    ids=["alone", "with a cache", "shards", "divided layers", "divided layers with a cache"],
)
def test_a_model_of_transformers(size, mesh, use_cache):
    library("transformers")
    found = world_of(size).run(pretrained, mesh, use_cache)[0]
    model = llama()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for tokens in batches(3, 8):
        model(input_ids=tokens, labels=tokens).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    for name, weight in model.state_dict().items():
        torch.testing.assert_close(found[name], weight, atol=1e-5, rtol=0)


def refused(settings: dict[str, Any], size: int, options: dict[str, Any]) -> str:
    try:
        accelerator = accelerator_for(Case(mesh=ALONE, **options), settings)
        case = Case()
        model = accelerator.prepare(build(case))
        model(torch.zeros(4, 5, dtype=torch.int64), target=torch.zeros(4, 5, dtype=torch.int64))
        model(torch.zeros(size, 5, dtype=torch.int64), target=torch.zeros(size, 5, dtype=torch.int64))
    except (ValueError, NotImplementedError) as error:
        return str(error)
    return "nothing was refused"


@pytest.mark.parametrize(
    ("settings", "size", "options", "text"),
    [
        ({"split_points": ["layer.1"]}, 4, {}, "Did you mean"),
        ({"num_microbatches": 3}, 4, {}, "batches of 3 or 6 samples"),
        ({}, 5, {}, "drop_last=True"),
        ({"loss": None}, 4, {}, "unexpected keyword"),
        ({"schedule": "interleaved", "num_microbatches": 5}, 5, {}, "change the batch size"),
        ({"schedule": "zbv_zero_bubble"}, 4, {"options": {"dynamo_backend": "aot_eager"}}, "'interleaved' waits"),
    ],
)
def test_what_is_refused(pair, settings, size, options, text):
    if text == "unexpected keyword":
        with pytest.raises(AssertionError, match="target"):
            pair.run(refused, settings, size, options)
        return
    for error in pair.run(refused, settings, size, options):
        assert text in error
