"""Plans by formulas: sizes that can be worked out on paper, meshes in text, and what is refused."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from accelerate.strategies.planning.facts import Subject, facts_of
from accelerate.strategies.planning.meshes import Mesh, check_size, parse_mesh, usual_meshes
from accelerate.strategies.planning.plan import plan_mesh, plan_meshes
from accelerate.strategies.planning.traffic import KINDS, Messages
from accelerate.strategies.planning.training import OPTIMIZERS, Training

from .plans import TINY, subject

HIDDEN, INNER, VOCABULARY = TINY["hidden_size"], TINY["intermediate_size"], TINY["vocab_size"]
#: Elements of a layer's matrices (queries and results, keys and values, feed-forward), and of all parameters.
MATRICES = 2 * HIDDEN * HIDDEN + 2 * HIDDEN * HIDDEN // 2 + 3 * HIDDEN * INNER
ALL = 2 * (MATRICES + 2 * HIDDEN) + 2 * VOCABULARY * HIDDEN + HIDDEN


def rank(mesh: Mesh, place: int = 0, **training: Any) -> Any:
    """Return what one of the ranks of the small model takes."""
    return plan_mesh(subject("tiny"), mesh, Training(**{"sequence_length": 64, **training})).ranks[place]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("dp_shard=64,tp=8", Mesh(dp_shard=64, tp=8)),
        ("dp_shard_size=2 pp=3", Mesh(dp_shard=2, pp=3)),
        (" cp = 2 ", Mesh(cp=2)),
        ("", Mesh()),
    ],
)
def test_meshes_are_read_from_text(text, expected):
    assert parse_mesh(text.replace(" = ", "=")) == expected


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("dp_shrd=8", "Did you mean 'dp_shard'?"),
        ("tp=8,tp=2", "twice"),
        ("tp=0", "no size"),
        ("tp", "no size"),
        ("tp=two", "no size"),
    ],
)
def test_what_is_no_mesh_is_refused(text, words):
    with pytest.raises(ValueError, match="What to do") as refusal:
        parse_mesh(text)
    assert words in str(refusal.value)


def test_a_mesh_of_another_size_is_refused_with_the_nearest():
    with pytest.raises(ValueError, match=r"Allowed: dp_shard=8,tp=8") as refusal:
        check_size(Mesh(dp_shard=8, tp=7), 64)
    assert "56 ranks" in str(refusal.value)


@pytest.mark.parametrize("processes", [1, 2, 6, 8, 64, 1024])
def test_usual_meshes_have_a_place_for_every_process(processes):
    found = list(usual_meshes(processes))
    assert found
    assert [each.size for each in found] == [processes] * len(found)
    assert len(set(found)) == len(found)


@pytest.mark.parametrize(
    ("mesh", "training", "words"),
    [
        (Mesh(tp=3), {}, "a size of 1, 2, 4"),
        (Mesh(tp=8), {}, "4 heads of keys and values"),
        (Mesh(pp=3), {}, "a pp of 2 or less"),
        (Mesh(pp=2), {"num_microbatches": 1}, "2 or more"),
        (Mesh(cp=2, sp=2), {}, "one of them greater than 1"),
        (Mesh(pp=2, cp=2), {}, "leave pp out"),
        (Mesh(cp=5), {}, "60 or 65"),
        (Mesh(sp=128), {}, "128"),
    ],
)
def test_meshes_that_a_model_does_not_fit_are_refused(mesh, training, words):
    with pytest.raises(ValueError, match="What to do") as refusal:
        rank(mesh, **training)
    assert words in str(refusal.value)


@pytest.mark.parametrize(
    "arguments",
    [
        {"precision": "bf61"},
        {"optimizer": "adamx"},
        {"schedule": "1b1f"},
        {"cp_comm_strategy": "ring"},
        {"batch_size": 0},
        {"sequence_length": -1},
        {"num_microbatches": 0},
    ],
)
def test_ways_to_train_that_are_unknown_are_refused(arguments):
    with pytest.raises(ValueError, match="Allowed: "):
        Training(**arguments)


@pytest.mark.parametrize(
    ("precision", "size"), [("fp32", 4), ("bf16", 4), ("pure_bf16", 2)], ids=["fp32", "bf16", "pure_bf16"]
)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_replicas_hold_everything(precision, size, optimizer):
    held = rank(Mesh(dp_replicate=2), precision=precision, optimizer=optimizer).memory
    states, counts_steps, _ = OPTIMIZERS[optimizer]
    tensors = 2 * 9 + 3
    assert (held.parameters, held.gradients, held.messages) == (ALL * size,) * 3
    assert held.optimizer == ALL * size * states + 4 * tensors * counts_steps


def test_shards_are_padded_to_the_largest_and_states_are_not():
    first, last = (rank(Mesh(dp_shard=64), place).memory for place in (0, 1))
    vocabulary, inner = 8 * HIDDEN, 3 * HIDDEN  # 500 rows over 64 ranks are 63 times 8, or none; 176 are 58 times 3
    layer = 2 * HIDDEN + 2 * HIDDEN + 2 * inner + 1 * INNER + 2  # keys have 32 rows: one for half of the ranks
    elements = 2 * layer + 2 * vocabulary + 1
    assert first.parameters == last.parameters == first.gradients == 4 * elements
    assert first.optimizer == 8 * elements + 4 * 21
    assert last.optimizer == 8 * (2 * (2 * HIDDEN + INNER + 2) + 1) + 4 * 21


def test_tensor_parallel_divides_the_matrices_of_its_plan():
    held = rank(Mesh(tp=4)).memory
    elements = 2 * (MATRICES // 4 + 2 * HIDDEN) + VOCABULARY * HIDDEN // 4 + VOCABULARY * HIDDEN + HIDDEN
    assert held.parameters == 4 * elements


def test_stages_have_all_parameters_together():
    found = plan_mesh(subject("tiny"), Mesh(pp=2, dp_replicate=2), Training(sequence_length=64)).ranks
    assert [each.stage for each in found] == [0, 1]
    assert sum(each.memory.parameters for each in found) == 4 * ALL


def messages(mesh: Mesh, **training: Any) -> dict[tuple[str, str], int]:
    """Return the payloads by kind and axis."""
    return {(each.kind, each.axis): each.payload for each in rank(mesh, **training).messages}


def test_replicas_add_up_gradients_once():
    assert messages(Mesh(dp_replicate=4), num_microbatches=3) == {("all_reduce", "replicate"): 4 * ALL}


@pytest.mark.parametrize(("reshard", "again"), [(True, 1), (False, 0)])
def test_shards_gather_parameters_and_scatter_gradients(reshard, again):
    """What doesn't reshard (the output layer with its norm) is gathered once."""
    sent = messages(Mesh(dp_replicate=2, dp_shard=4), num_microbatches=3, reshard_after_forward=reshard)
    kept = VOCABULARY * HIDDEN + HIDDEN
    assert sent == {
        ("all_gather", "shard"): 3 * 2 * (ALL + again * (ALL - kept)),
        ("reduce_scatter", "shard"): 3 * 2 * ALL,
        ("all_reduce", "replicate"): 3 * 2 * ALL // 4,
    }


def test_divided_layers_add_up_outputs_and_the_gradients_of_inputs():
    tokens = 64
    rows = 2 * 2 * HIDDEN  # attention and feed-forward, in two layers
    columns = 2 * 5 * HIDDEN + HIDDEN  # queries, keys, values, gate and up, and the output layer
    assert messages(Mesh(tp=2), precision="fp32") == {
        ("all_reduce", "tp"): 4 * tokens * (rows + columns),
        ("all_gather", "tp"): 4 * tokens * VOCABULARY,
    }


@pytest.mark.parametrize(
    ("mesh", "training", "expected"),
    [
        # a ring of 4: keys and values forward and backward, and their gradients in fp32; 16 tokens, 2 layers, 32 units
        (Mesh(cp=4), {}, {("all_gather", "cp"): 2 * 4 * 4096, ("send", "cp"): 4 * 8192}),
        (Mesh(cp=4), {"cp_comm_strategy": "alltoall"}, {("send", "cp"): 2 * 3 * 4096 + 4 * 8192}),
        # queries and results of 64 units, keys and values of 32, forward and backward
        (Mesh(sp=4), {"precision": "pure_bf16"}, {("all_to_all", "sp"): 2 * 2 * (2 * 64 + 2 * 32) * 2 * 16}),
        # four heads of keys are repeated for eight ranks
        (Mesh(sp=8), {"precision": "pure_bf16"}, {("all_to_all", "sp"): 2 * 2 * (2 * 64 + 2 * 64) * 2 * 8}),
        # three micro-batches of 64 tokens to the next stage; the residual stream is in fp32
        (Mesh(pp=2), {"num_microbatches": 3}, {("send", "pp"): 3 * 64 * HIDDEN * 4}),
    ],
    ids=["ring", "ring of exchanges", "heads", "repeated heads", "pipeline"],
)
def test_sequences_and_stages_pass_on_activations(mesh, training, expected):
    sent = messages(mesh, **training)
    sent.pop(("all_reduce", "replicate"), None)
    assert sent == expected


@pytest.mark.parametrize(
    ("kind", "expected"),
    [("all_gather", 75), ("reduce_scatter", 75), ("all_to_all", 75), ("all_reduce", 150), ("send", 100)],
)
def test_a_rank_sends_what_a_ring_asks_for(kind, expected):
    assert kind in KINDS
    assert Messages(kind, "axis", 4, 100).sent == expected


def test_activations_shrink_with_what_divides_them():
    def kept(mesh: Mesh, **training: Any) -> int:
        found = rank(mesh, **training).memory.activations
        assert found is not None
        return int(found)

    whole = kept(Mesh(dp_shard=2))
    assert kept(Mesh(dp_shard=2, cp=2)) * 2 == whole
    assert kept(Mesh(dp_shard=2), batch_size=3) == 3 * whole
    assert kept(Mesh(dp_shard=2, tp=2)) < whole
    assert kept(Mesh(dp_shard=2), activation_checkpointing=True) < whole


def test_a_pipeline_holds_as_many_micro_batches_as_its_schedule_says():
    def stage(number: int, **training: Any) -> int:
        found = plan_mesh(subject("tiny"), Mesh(pp=2), Training(sequence_length=64, num_microbatches=6, **training))
        assert found.ranks[number].memory.activations is not None
        return int(found.ranks[number].memory.activations)

    assert stage(0, schedule="gpipe") == 3 * stage(0)
    assert stage(1, schedule="gpipe") > stage(1)


def test_without_a_shape_activations_are_left_out():
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 4))
    held = plan_mesh(Subject(model), Mesh(dp_shard=4), Training()).fullest.memory
    assert held.activations is None
    assert held.parameters == 4 * (2 * 8 + 2 + 8 + 1)


def test_frozen_parameters_have_no_gradients_and_shared_ones_count_once():
    model = nn.ModuleDict({"a": nn.Linear(4, 4, bias=False), "b": nn.Linear(4, 4, bias=False), "c": nn.Linear(4, 4)})
    model["b"].weight = model["a"].weight
    model["c"].requires_grad_(False)
    held = plan_mesh(Subject(model), Mesh(dp_replicate=2), Training(precision="fp32")).fullest.memory
    assert (held.parameters, held.gradients, held.optimizer) == (4 * 36, 4 * 16, 8 * 16 + 4)


def test_layers_of_other_kinds_are_not_divided_on_paper():
    model = nn.ModuleDict({"norm": nn.LayerNorm(4)})
    with pytest.raises(ValueError, match="a plan for tensor parallel"):
        facts_of(Subject(model, tp_plan={"norm": "colwise"}), tp=2)


def test_layers_that_leave_a_rest_are_refused():
    own = Subject(nn.ModuleDict({"up": nn.Linear(8, 15)}), tp_plan={"up": "colwise"})
    with pytest.raises(ValueError, match="divides 15, such as 1, 3"):
        plan_mesh(own, Mesh(tp=2), Training())


def test_models_are_divided_by_their_plan_or_ones_own():
    model = nn.ModuleDict({"up": nn.Linear(8, 16), "down": nn.Linear(16, 8)})
    with pytest.raises(ValueError, match="nothing says how to divide"):
        plan_mesh(Subject(model), Mesh(tp=2), Training())
    own = Subject(model, tp_plan={"up": "colwise", "down": "rowwise"})
    assert plan_mesh(own, Mesh(tp=2), Training()).fullest.memory.parameters == 4 * (64 + 8 + 64 + 8)


@pytest.mark.parametrize(("name", "billions"), [("llama-7b", 6.738), ("llama-70b", 68.977), ("llama-405b", 405.853)])
def test_shapes_by_name_have_the_published_sizes(name, billions):
    count = sum(each.numel() for each in subject(name).model.parameters())
    assert round(count / 1e9, 3) == billions


def test_the_usual_meshes_of_1024_ranks_for_a_large_model():
    found = plan_meshes(subject("llama-70b"), 1024, Training(activation_checkpointing=True))
    assert {str(each.mesh) for each in found} >= {"dp_replicate=1024", "dp_shard=1024", "dp_shard=128,tp=8"}
    shards = next(each for each in found if each.mesh == Mesh(dp_shard=1024)).fullest.memory
    assert shards.parameters == pytest.approx(4 * 68.977e9 / 1024, rel=1e-3)
    assert all(each.fullest.memory.peak > each.fullest.memory.parameters for each in found)


def test_committed_plans_are_what_the_code_computes():
    """Those of seven billion parameters."""
    content = json.loads((Path(__file__).parents[3] / "benchmarks/results/parallel_plans.json").read_text())
    training = Training(**content["training"])
    for row in (each for each in content["plans"] if each["model"] == "llama-7b"):
        found = plan_mesh(subject("llama-7b"), parse_mesh(row["mesh"]), training)
        assert row["memory"] == asdict(found.fullest.memory)
        assert row["all"] == max(each.total for each in found.ranks)


def test_the_model_computes_what_its_name_says():
    from accelerate.big_modeling.llama import LlamaForCausalLM

    torch.manual_seed(0)
    model = LlamaForCausalLM(TINY)
    tokens = torch.randint(0, VOCABULARY, (2, 8))
    changed = tokens.clone()
    changed[:, -1] = (changed[:, -1] + 1) % VOCABULARY
    before, after = model(tokens), model(changed)
    torch.testing.assert_close(before[:, :-1], after[:, :-1])  # causal
    assert model(tokens, tokens).dim() == 0
