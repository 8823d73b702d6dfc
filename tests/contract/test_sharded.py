"""Sharded training ends with the weights of one process, whatever is sharded, and each rank holds its share only."""

from __future__ import annotations

import itertools
import os
from dataclasses import replace
from typing import Any

import pytest
import torch

from accelerate.base.messages import forget_warnings
from accelerate.strategies.relink import canonical_name

from .conftest import world_of
from .recipes import Recipe, reference, train
from .sharded import (
    V1,
    V2,
    Case,
    accelerator_for,
    build,
    groups,
    language,
    local,
    loss_of,
    micro_batches,
    reference_case,
    train_case,
)
from .test_same_weights import RECIPES

#: One line per strategy: the arguments of its plugin.
STRATEGIES: dict[str, dict[str, Any]] = {
    "fsdp2": {"fsdp_version": 2},
    "fsdp1": {"use_orig_params": True},
    "fsdp1, flat": {},
}
#: Recipes that need what one strategy doesn't have.
LEFT_OUT = {("fsdp1, flat", "frozen backbone")}


@pytest.fixture(params=[2, 4], ids="processes={}".format)
def several(request):
    """A world of two and four processes in turn."""
    return world_of(request.param)


def train_with(plugin: dict[str, Any], recipe: Recipe) -> Any:
    from accelerate import FullyShardedDataParallelPlugin

    return train(replace(recipe, accelerator={"fsdp_plugin": FullyShardedDataParallelPlugin(**plugin)}))


@pytest.mark.parametrize(
    ("strategy", "name"), [each for each in itertools.product(STRATEGIES, RECIPES) if each not in LEFT_OUT]
)
def test_the_common_recipes(several, strategy, name):
    """fp32: equal within 1e-6, the bound of another order of summation."""
    recipe = RECIPES[name]
    outcomes = several.run(train_with, STRATEGIES[strategy], recipe)
    expected = reference(recipe, outcomes[0].batches)
    assert outcomes[0].rates == pytest.approx(expected.rates, abs=1e-12)
    assert outcomes[0].weights.keys() == expected.weights.keys()
    for name, weight in expected.weights.items():
        torch.testing.assert_close(outcomes[0].weights[name], weight, atol=1e-6, rtol=0)


CASES = {
    "blocks": Case(),
    "one unit": Case(plugin={"fsdp_version": 2}),
    "units by size": Case(plugin={"fsdp_version": 2, "auto_wrap_policy": "SIZE_BASED_WRAP", "min_num_params": 300}),
    "units by name": Case(plugin={**V2, "transformer_cls_names_to_wrap": "LayerNorm"}),
    "tied embeddings, clipped": Case(tied=True, clip=0.1),
    "parts are frozen": Case(frozen=("embeddings", "layers.0", "layers.1.up")),
    "accumulation, clipped": Case(steps=3, clip=0.1),
    "no_sync": Case(steps=3, clip=0.1, no_sync=True),
    "other seeds on other ranks": Case(seeds=True),
    "only the main process has weights": Case(meta=True, plugin={**V2, "cpu_ram_efficient_loading": True}),
    "the others are empty, unasked": Case(meta=True),
    "tied, others are empty": Case(meta=True, tied=True, plugin={**V2, "cpu_ram_efficient_loading": True}),
    "activation checkpointing": Case(plugin={**V2, "activation_checkpointing": True}),
    "activation checkpointing, offloaded": Case(
        plugin={**V2, "activation_checkpointing": True, "activation_checkpointing_offload": True}
    ),
    "offload": Case(plugin={**V2, "cpu_offload": True}, clip=0.1, steps=2),
    "parameters are kept for backward": Case(plugin={**V2, "reshard_after_forward": False}, steps=2),
}


#: The same with the first generation.
FLAT = {
    "blocks": Case(plugin=V1, updates=20),
    "one unit": Case(plugin={"use_orig_params": True}),
    "units by size": Case(plugin={**V1, "auto_wrap_policy": "SIZE_BASED_WRAP", "min_num_params": 300}),
    "tied embeddings, clipped": Case(plugin=V1, tied=True, clip=0.1),
    "parts are frozen": Case(plugin=V1, frozen=("embeddings", "layers.0", "layers.1.up")),
    "accumulation, clipped": Case(plugin=V1, steps=3, clip=0.1),
    "no_sync": Case(plugin=V1, steps=3, clip=0.1, no_sync=True),
    "other seeds on other ranks": Case(plugin=V1, seeds=True),
    "tied, others are empty": Case(plugin={**V1, "cpu_ram_efficient_loading": True}, meta=True, tied=True),
    "activation checkpointing": Case(plugin={**V1, "activation_checkpointing": True}),
    "gradients and states only": Case(
        plugin={
            **V1,
            "sharding_strategy": "SHARD_GRAD_OP",
            "forward_prefetch": True,
            "backward_prefetch": "BACKWARD_POST",
        },
        steps=2,
    ),
    "by machine": Case(plugin={**V1, "sharding_strategy": "HYBRID_SHARD"}, clip=0.1),
    "by machine, gradients and states only": Case(plugin={**V1, "sharding_strategy": "HYBRID_SHARD_ZERO2"}, clip=0.1),
    "offload": Case(plugin={**V1, "cpu_offload": True}, clip=0.1),
}


#: Axes of two processes each, with the share of the parameters that a rank holds on four processes.
MESHES = {
    "replicas of shards": (
        Case(mesh={"dp_replicate_size": 2, "dp_shard_size": 2}, clip=0.1, steps=2, updates=20),
        2,
    ),
    "replicas of flat shards": (
        Case(
            plugin={**V1, "sharding_strategy": "HYBRID_SHARD"},
            mesh={"dp_replicate_size": 2, "dp_shard_size": 2},
            clip=0.1,
        ),
        2,
    ),
    "whole parameters, as FSDP": (Case(plugin={**V1, "sharding_strategy": "NO_SHARD"}, clip=0.1), 1),
    "shards": (Case(mesh={"dp_shard_size": 4}, tied=True), 4),
    "sizes are found out": (Case(mesh={}), 4),
    "replicas alone": (Case(plugin=None, mesh={"dp_replicate_size": 4}, clip=0.1), 1),
    "replicas of shards, other seeds": (Case(mesh={"dp_replicate_size": 2, "dp_shard_size": 2}, seeds=True), 2),
}


@pytest.mark.parametrize(("case", "shards"), MESHES.values(), ids=MESHES.keys())
def test_a_mesh(case, shards):
    """fp32: weights and norms equal within 1e-5."""
    outcomes = world_of(4).run(train_case, case)
    expected = reference_case(case)
    for name, weight in expected["weights"].items():
        torch.testing.assert_close(outcomes[0]["weights"][name], weight, atol=1e-5, rtol=0)
    for outcome in outcomes:
        assert outcome["norms"] == pytest.approx(expected["norms"], rel=1e-5)
        assert outcome["held"] == pytest.approx(expected["held"] / shards, rel=0.1)


@pytest.mark.parametrize(
    "case", [*CASES.values(), *FLAT.values()], ids=[*CASES.keys(), *(f"flat, {name}" for name in FLAT)]
)
def test_a_language_model(several, case):
    """fp32: weights and norms equal within 1e-5."""
    outcomes = several.run(train_case, case)
    expected = reference_case(case)
    assert outcomes[0]["weights"].keys() == expected["weights"].keys()
    for name, weight in expected["weights"].items():
        torch.testing.assert_close(outcomes[0]["weights"][name], weight, atol=1e-5, rtol=0)
    for outcome in outcomes:
        assert outcome["norms"] == pytest.approx(expected["norms"], rel=1e-5)
    assert [outcome["weights"] for outcome in outcomes[1:]] == [{}] * (several.size - 1)
    assert sum(outcome["held"] for outcome in outcomes) == expected["held"]
    assert max(outcome["held"] for outcome in outcomes) < 1.1 * expected["held"] / several.size


PRECISIONS = {
    "bf16": (Case(precision="bf16", clip=0.1), 2e-3),
    "bf16, gradients in fp32": (
        Case(
            precision="bf16", plugin={**V2, "mixed_precision_policy": {"param_dtype": "bf16", "reduce_dtype": "fp32"}}
        ),
        1e-2,
    ),
    "fp16": (Case(precision="fp16", clip=0.1), 2e-3),
    "flat, bf16": (Case(plugin=V1, precision="bf16", clip=0.1), 5e-3),
    "flat, fp16": (Case(plugin=V1, precision="fp16", clip=0.1), 2e-3),
}


@pytest.mark.parametrize(("case", "bound"), PRECISIONS.values(), ids=PRECISIONS.keys())
def test_half_precision_is_close(several, case, bound):
    outcome = several.run(train_case, case)[0]
    for name, weight in reference_case(case)["weights"].items():
        assert outcome["weights"][name].dtype == torch.float32
        torch.testing.assert_close(outcome["weights"][name], weight, atol=bound, rtol=0)


def ignoring(case: Case) -> Any:
    shapes = {name: each.shape for name, each in language().named_parameters()}
    found = {canonical_name(name): each for name, each in trained(case).named_parameters()}
    held = {name: local(each).shape == shapes[name] for name, each in found.items()}
    return [name for name, whole in held.items() if whole]


def trained(case: Case) -> torch.nn.Module:
    accelerator = accelerator_for(case)
    model = build(case, accelerator.process_index)
    return accelerator.prepare(model, torch.optim.SGD([each for each in model.parameters() if each.requires_grad]))[0]


@pytest.mark.parametrize("plugin", [V2, V1], ids=["fsdp2", "fsdp1"])
def test_ignored_modules_stay_whole(pair, plugin):
    case = Case(plugin={**plugin, "ignored_modules": r"layers\.0"}, frozen=("layers.0",))
    names = [name for name, _ in language().named_parameters() if name.startswith("layers.0.")]
    one, other = pair.run(ignoring, case)
    assert [name for name in one if name in other] == names


def overflowing(case: Case) -> Any:
    accelerator = accelerator_for(case)
    model = build(case)
    model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    shard = micro_batches(case, accelerator.process_index, accelerator.num_processes)
    accelerator.backward(loss_of(model, shard[0]))
    if accelerator.process_index == 1:
        held = (local(each.grad) for each in model.parameters() if each.grad is not None)
        next(each for each in held if each.numel()).fill_(float("inf"))
    optimizer.step()
    return optimizer.step_was_skipped, accelerator.scaler.get_scale()


@pytest.mark.parametrize("plugin", [V2, V1], ids=["fsdp2", "fsdp1"])
def test_an_overflow_on_one_rank_skips_the_update_on_all(pair, plugin):
    assert pair.run(overflowing, Case(plugin=plugin, precision="fp16")) == [(True, 32768.0)] * 2


def clipped_values(case: Case) -> float:
    accelerator = accelerator_for(case)
    model = build(case)
    model, _ = accelerator.prepare(model, torch.optim.SGD(model.parameters()))
    accelerator.backward(loss_of(model, micro_batches(case, 0, 2)[0]))
    accelerator.clip_grad_value_(model.parameters(), 1e-3)
    return max(local(each.grad).abs().max().item() for each in model.parameters())


def test_values_are_clipped(pair):
    assert pair.run(clipped_values, Case()) == [pytest.approx(1e-3)] * 2


def facts(case: Case) -> dict[str, Any]:
    accelerator = accelerator_for(case)
    plugin = accelerator.state.fsdp_plugin
    policy = plugin.mixed_precision_policy
    model = build(case)
    prepared = accelerator.prepare(model, torch.optim.SGD(model.parameters()))[0]
    state = accelerator.get_state_dict(prepared)
    other = language(1)
    accelerator._strategy.load_state_dict(prepared, other.state_dict() if accelerator.is_main_process else {})
    loaded = accelerator.get_state_dict(prepared)
    return {
        "label": str(accelerator.distributed_type),
        "fsdp2": accelerator.is_fsdp2,
        "policy": None if policy is None else str(policy.param_dtype),
        "same object": prepared is model,
        "listed": accelerator._models == [prepared],
        "again": accelerator.prepare(prepared) is prepared,
        "names": sorted(state),
        "loaded": not loaded or all(torch.equal(loaded[name], value) for name, value in other.state_dict().items()),
        "variable": os.environ["ACCELERATE_USE_FSDP"],
    }


def test_what_the_accelerator_says(pair):
    main, other = pair.run(facts, Case(precision="bf16"))
    assert main.pop("names") == sorted(language().state_dict())
    assert other.pop("names") == []
    assert (
        main
        == other
        == {
            "label": "DistributedType.FSDP",
            "fsdp2": True,
            "policy": "torch.bfloat16",
            "same object": True,
            "listed": True,
            "again": True,
            "loaded": True,
            "variable": "true",
        }
    )


def replaced(case: Case) -> list[str]:
    """Return which functions sharded a model, when other libraries have put theirs in the place of ours."""
    from accelerate import accelerator as module

    called = []
    ours = module.fsdp2_prepare_model

    def theirs(accelerator: Any, model: torch.nn.Module) -> torch.nn.Module:
        called.append(type(model).__name__)
        return ours(accelerator, model)

    module.fsdp2_prepare_model = theirs
    try:
        trained(case)
    finally:
        module.fsdp2_prepare_model = ours
    return called


def test_another_function_may_shard(pair):
    assert pair.run(replaced, Case()) == [["Language"]] * 2


def refusal(case: Case, mistake: str) -> str:
    """Return the error that a mistake gives on this rank."""
    accelerator = accelerator_for(case)
    model = build(case, accelerator.process_index)
    try:
        if mistake == "optimizer later":
            optimizer = torch.optim.SGD(model.parameters())
            accelerator.prepare(model)
            accelerator.prepare(optimizer)
        elif mistake == "optimizer never":
            optimizer = torch.optim.SGD(model.parameters())
            accelerator.backward(loss_of(accelerator.prepare(model), micro_batches(case, 0, 2)[0]))
            optimizer.step()
        elif mistake == "two dtypes":
            model.layers[1].gain.data = model.layers[1].gain.data.bfloat16()
            accelerator.prepare(model)
        elif mistake == "wrapped":
            accelerator.prepare(torch.nn.parallel.DistributedDataParallel(model))
        elif mistake == "another model on rank 1":
            accelerator.prepare(language(blocks=2 + accelerator.process_index))
        elif mistake == "groups":
            accelerator.prepare(model, torch.optim.SGD(groups(model), lr=0.1))
        elif mistake == "no values":
            accelerator.prepare(model.to("meta"))
        else:
            accelerator.prepare(model)
    except ValueError as error:
        return str(error)
    return "nothing was refused"


REFUSALS = {
    "optimizer later": (Case(), "optimizer later", "pass the model and its optimizers to `prepare` together"),
    "optimizer later, flat": (
        Case(plugin={}),
        "optimizer later",
        "pass the model and its optimizers to `prepare` together",
    ),
    "optimizer never": (Case(), "optimizer never", "pass the model and its optimizers to `prepare` together"),
    "optimizer never, flat": (
        Case(plugin={}),
        "optimizer never",
        "pass the model and its optimizers to `prepare` together",
    ),
    "two dtypes in a module": (Case(), "two dtypes", "a Block with parameters in bfloat16 (gain) and float32"),
    "two dtypes in a module, flat": (Case(plugin=V1), "two dtypes", "a Block with parameters in bfloat16 (gain)"),
    "wrapped": (Case(), "wrapped", "its parameters are distributed already"),
    "another model": (Case(), "another model on rank 1", "only one of them has layers.2"),
    "no values": (Case(), "no values", "on the meta device on the main process"),
    "groups of flat parameters": (Case(plugin={}), "groups", "use_orig_params=True"),
    "frozen parts of flat parameters": (Case(plugin={}, frozen=("norm",)), "", "use_orig_params=True"),
    "no such class": (Case(plugin={**V2, "transformer_cls_names_to_wrap": "Blok"}), "", "Did you mean 'Block'?"),
    "no such class, flat": (Case(plugin={**V1, "transformer_cls_names_to_wrap": "Blok"}), "", "Did you mean 'Block'?"),
    "no such module": (Case(plugin={**V2, "ignored_modules": "layer.0"}), "", "Did you mean 'layers.0'?"),
    "no expression": (Case(plugin={**V2, "ignored_modules": "layers.("}), "", "it is no regular expression: missing )"),
}


@pytest.mark.parametrize(("case", "mistake", "text"), REFUSALS.values(), ids=REFUSALS.keys())
def test_what_is_refused(pair, case, mistake, text):
    for error in pair.run(refusal, case, mistake):
        assert text in error


def laid_out(case: Case) -> dict[str, Any]:
    accelerator = accelerator_for(case)
    loader = accelerator.prepare(torch.utils.data.DataLoader(list(range(8)), batch_size=1))
    return {
        "axes": accelerator.torch_device_mesh.mesh_dim_names,
        "ranks": (accelerator.data_parallel_rank, accelerator.data_parallel_shard_rank),
        "data": [int(batch) for batch in loader],
        "composable": accelerator.is_composable_parallelism_enabled,
        "total": accelerator.parallelism_config.total_size,
    }


def test_what_a_mesh_says():
    found = world_of(4).run(laid_out, Case(mesh={"dp_replicate_size": 2, "dp_shard_size": 2}))
    assert [each["ranks"] for each in found] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert [each["data"] for each in found] == [[0, 4], [1, 5], [2, 6], [3, 7]]
    for each in found:
        assert each["axes"] == ("dp_replicate", "dp_shard")
        assert each["composable"]
        assert each["total"] == 4


def wrapped_by_hand(case: Case) -> list[float]:
    """Clip gradients of a model that the script has wrapped itself; return the norm and whether it was taken over."""
    from torch.distributed.fsdp import FullyShardedDataParallel

    accelerator = accelerator_for(case)
    model = FullyShardedDataParallel(build(case), device_id=torch.device("cpu"), use_orig_params=True)
    prepared, _ = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    tokens = micro_batches(case, accelerator.process_index, accelerator.num_processes)[0]
    accelerator.backward(loss_of(prepared, tokens))
    return [float(accelerator.clip_grad_norm_(prepared.parameters(), 0.1)), float(prepared is model)]


def test_a_model_that_was_wrapped_by_hand_is_taken_over(pair):
    case = Case(plugin=V1, updates=1, clip=0.1)
    assert pair.run(wrapped_by_hand, case) == [[pytest.approx(reference_case(case)["norms"][0], rel=1e-5), 1.0]] * 2


def flat(case: Case) -> list[Any]:
    """Prepare two models whose parameters have the same names, and one that is prepared already."""
    accelerator = accelerator_for(case)
    models = [language(0), language(1)]
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for model in models]
    *models, one, two = accelerator.prepare(*models, *optimizers)
    later = torch.optim.SGD(models[0].parameters(), lr=0.1)
    _, later = accelerator.prepare(models[0], later)
    own = [{id(parameter) for parameter in model.parameters()} for model in models]
    held = [
        {id(each) for group in optimizer.param_groups for each in group["params"]} for optimizer in (one, two, later)
    ]
    return [
        held[0] == own[0],
        held[1] == own[1],
        held[2] == own[0],
        accelerator.unwrap_model(models[0]).__class__.__name__,
    ]


def test_flat_parameters_go_to_the_optimizer_of_their_model(pair):
    assert pair.run(flat, Case(plugin={})) == [[True, True, True, "Language"]] * 2


def construction(case: Case) -> str:
    try:
        accelerator_for(case)
    except (ValueError, NotImplementedError) as error:
        return str(error)
    return "nothing was refused"


LAYOUTS = {
    "too few": (Case(mesh={"dp_shard_size": 3}), "dp_shard_size=2"),
    "shards without FSDP": (Case(plugin=None, mesh={"dp_shard_size": 2}), "FSDP is what shards parameters"),
    "FSDP without shards": (Case(mesh={"dp_replicate_size": 2}), "there is nobody to shard over"),
    "the first FSDP with replicas": (
        Case(plugin={}, mesh={"dp_replicate_size": 2, "dp_shard_size": 1}),
        "there is nobody to shard over",
    ),
}


@pytest.mark.parametrize(("case", "text"), LAYOUTS.values(), ids=LAYOUTS.keys())
def test_layouts_that_are_refused(pair, case, text):
    for error in pair.run(construction, case):
        assert text in error


def test_one_process_has_nobody_to_share_with():
    forget_warnings()
    with pytest.warns(UserWarning, match="FSDP has no effect with one process"):
        outcome = world_of(1).run(train_case, Case())[0]
    for name, weight in reference_case(Case())["weights"].items():
        torch.testing.assert_close(outcome["weights"][name], weight)
