"""Formulas against a simulated process group: both count the same bytes, on the first rank and on the last."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist

from accelerate.strategies.planning.facts import Subject
from accelerate.strategies.planning.meshes import Mesh, parse_mesh
from accelerate.strategies.planning.plan import plan_mesh
from accelerate.strategies.planning.simulate import simulate_mesh, step_for
from accelerate.strategies.planning.training import Training

from .plans import subject

CASES: dict[str, dict[str, Any]] = {
    "dp_replicate=8": {"optimizer": "sgd_momentum"},
    "dp_shard=8": {"activation_checkpointing": True},
    "dp_shard=64": {"precision": "fp32", "reshard_after_forward": False, "num_microbatches": 2},
    "dp_shard=1024": {"precision": "pure_bf16", "optimizer": "sgd"},
    "dp_replicate=2,dp_shard=4": {"num_microbatches": 2, "optimizer": "rmsprop"},
    "tp=4": {},
    "dp_replicate=2,tp=2": {"num_microbatches": 2, "optimizer": "adagrad"},
    "dp_shard=4,tp=2": {"activation_checkpointing": True, "batch_size": 2},
    "dp_shard=2,cp=4": {"optimizer": "adam"},
    "cp=4": {"activation_checkpointing": True},
    "dp_replicate=2,dp_shard=2,cp=2,tp=2": {},
}


def training(**settings: Any) -> Training:
    return Training(**{"sequence_length": 64, "cp_comm_strategy": "cpu", **settings})


@pytest.mark.parametrize(("mesh", "settings"), CASES.items(), ids=CASES.keys())
def test_formulas_and_simulation_agree(mesh, settings):
    """Parameters, gradients and states with their padding, and all messages: exactly."""
    sizes, how = parse_mesh(mesh), training(**settings)
    planned = plan_mesh(subject("tiny"), sizes, how).ranks
    first = simulate_mesh(subject("tiny"), sizes, how)
    assert first.differences(planned[0]) == []
    assert first.messages == planned[0].messages
    last = simulate_mesh(subject("tiny"), sizes, how, rank=sizes.size - 1)
    assert last.differences(planned[-1]) == []
    assert not dist.is_initialized()


@pytest.mark.parametrize(
    "mesh", [Mesh(dp_shard=64), Mesh(dp_replicate=16, dp_shard=64), Mesh(dp_shard=128, tp=8)], ids=str
)
def test_shards_of_seven_billion_parameters(mesh):
    how = Training(precision="fp32")
    planned = plan_mesh(subject("llama-7b"), mesh, how).ranks
    for place, number in ((0, 0), (-1, mesh.size - 1)):
        found = simulate_mesh(subject("llama-7b"), mesh, how, rank=number, step=None)
        assert found.differences(planned[place]) == []
        states = planned[place].memory.optimizer - 4 * 291  # two states of 4 bytes, and the steps of each parameter
        assert found.elements * 8 == states


@pytest.mark.parametrize("again", [False, True], ids=["kept", "computed again"])
def test_the_peak_is_near_that_of_a_simulation(again):
    """Four layers as wide as those of a model of seven billion parameters: within 5 %."""
    from accelerate.big_modeling.llama import CONFIGS, LlamaForCausalLM
    from accelerate.big_modeling.shapes import Shape

    config = CONFIGS["llama-7b"] | {"num_hidden_layers": 4}
    with torch.device("meta"):
        wide = Subject(LlamaForCausalLM(config), Shape.of(config), ("LlamaDecoderLayer",))
    how, mesh = Training(activation_checkpointing=again), Mesh(dp_shard=64)
    planned, found = plan_mesh(wide, mesh, how).ranks[0], simulate_mesh(wide, mesh, how)
    assert found.differences(planned) == []
    assert planned.memory.peak == pytest.approx(found.peak, rel=0.05)


@pytest.mark.parametrize("style", ["rowwise", "colwise"])
def test_embeddings_are_divided_too(style):
    """As transformers' plans have them; what is looked up is added up, or put together."""
    plain = subject("tiny")
    own = Subject(plain.model, plain.shape, plain.no_split, {**plain.model.tp_plan, "model.embed_tokens": style})
    differences = simulate_mesh(own, Mesh(tp=2), training()).differences(
        plan_mesh(own, Mesh(tp=2), training()).ranks[0]
    )
    # torch makes the gradient of an embedding that is divided by rows a view of one for all rows.
    assert [each for each in differences if not each.startswith("gradients")] == []


def test_models_of_ones_own_are_sharded_and_those_that_take_no_tokens_run_no_step():
    model = torch.nn.Sequential(torch.nn.Linear(10, 7), torch.nn.Linear(7, 3))
    own = Subject(model)
    assert step_for(model) is None
    found = simulate_mesh(own, Mesh(dp_shard=4), Training(), step=None)
    assert (found.gradients, found.messages) == (None, None)
    assert found.differences(plan_mesh(own, Mesh(dp_shard=4), Training()).ranks[0]) == []
    assert not model[0].weight.is_meta

    def step(model: torch.nn.Module, batch: int, length: int) -> torch.Tensor:
        return model(torch.zeros(batch, 10)).float().sum()

    run = simulate_mesh(own, Mesh(dp_shard=4), Training(precision="fp32"), step=step)
    assert run.differences(plan_mesh(own, Mesh(dp_shard=4), Training(precision="fp32")).ranks[0]) == []


@pytest.mark.parametrize("mesh", [Mesh(pp=2), Mesh(sp=2)], ids=str)
def test_axes_that_are_not_simulated_are_refused(mesh):
    with pytest.raises(ValueError, match="a simulation of the mesh"):
        simulate_mesh(subject("tiny"), mesh, training())
