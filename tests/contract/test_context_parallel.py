"""Sequences divided over processes, alone and with every other axis: the weights are those of one process."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from .conftest import world_of
from .sharded import (
    PLAN,
    V2,
    VOCABULARY,
    Case,
    accelerator_for,
    batches,
    build,
    groups,
    library,
    llama,
    micro_batches,
    share_of,
)

CASES = {
    "alone, clipped": (2, Case(plugin=None, mesh={"cp_size": 2}, clip=0.1, updates=20)),
    "alone, accumulation": (2, Case(plugin=None, mesh={"cp_size": 2}, clip=0.1, steps=2)),
    "shards over the same ranks": (2, Case(plugin=V2, mesh={"cp_size": 2}, clip=0.1, tied=True, seeds=True)),
    "over four": (4, Case(plugin=None, mesh={"cp_size": 4})),
    "replicas": (4, Case(plugin=None, mesh={"cp_size": 2, "dp_replicate_size": 2}, clip=0.1, steps=2)),
    "shards": (4, Case(plugin=V2, mesh={"cp_size": 2, "dp_shard_size": 2}, clip=0.1, steps=2, updates=20)),
    "divided layers": (4, Case(plugin=None, mesh={"cp_size": 2, "tp_size": 2}, plan=PLAN, clip=0.1)),
}


def loss_with(model: Any, inputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Return the mean loss; labels are the tokens that follow, so that a part of a sequence has them too."""
    return torch.nn.functional.cross_entropy(model(inputs).reshape(-1, VOCABULARY), labels.reshape(-1))


def pairs(tokens: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return inputs and labels [batch, 4]: four can be divided by two and by four."""
    return tokens[:, :4].clone(), tokens[:, 1:5].clone()


def train(case: Case) -> dict[str, Any]:
    """Train on this rank; return the whole weights (rank 0) and the norms, and whether batches were put back."""
    accelerator = accelerator_for(case)
    model = build(case, accelerator.process_index)
    optimizer = torch.optim.SGD(groups(model), lr=0.1, momentum=0.9)
    model, optimizer = accelerator.prepare(model, optimizer)
    norms, same = [], True
    for number, tokens in enumerate(micro_batches(case, *share_of(accelerator, accelerator.torch_device_mesh)), 1):
        inputs, labels = pairs(tokens)
        before = inputs.clone()
        with accelerator.accumulate(model):
            with accelerator.maybe_context_parallel(
                buffers=[inputs, labels], buffer_seq_dims=[1, 1], no_restore_buffers={labels}
            ):
                accelerator.backward(loss_with(model, inputs, labels))
            if accelerator.sync_gradients and case.clip is not None:
                norms.append(float(accelerator.clip_grad_norm_(model.parameters(), case.clip)))
            optimizer.step()
            optimizer.zero_grad()
        same = same and torch.equal(inputs, before) and labels.shape != before.shape
        assert number <= case.updates * case.steps
    return {"weights": accelerator.get_state_dict(model), "norms": norms, "same": same}


def reference(case: Case) -> dict[str, Any]:
    """Train the same in one process, with nothing but torch."""
    model = build(case)
    optimizer = torch.optim.SGD(groups(model), lr=0.1, momentum=0.9)
    norms = []
    for number, tokens in enumerate(micro_batches(case, 0, 1), 1):
        (loss_with(model, *pairs(tokens)) / case.steps).backward()
        if number % case.steps == 0:
            if case.clip is not None:
                norms.append(float(torch.nn.utils.clip_grad_norm_(model.parameters(), case.clip)))
            optimizer.step()
            optimizer.zero_grad()
    return {"weights": model.state_dict(), "norms": norms}


@pytest.mark.parametrize(("size", "case"), CASES.values(), ids=CASES.keys())
def test_weights_are_those_of_one_process(size, case):
    """Causal attention, fp32: weights and norms equal within 1e-5."""
    outcomes, expected = world_of(size).run(train, case), reference(case)
    assert outcomes[0]["weights"].keys() == expected["weights"].keys()
    for name, weight in expected["weights"].items():
        torch.testing.assert_close(outcomes[0]["weights"][name], weight, atol=1e-5, rtol=0)
    for outcome in outcomes:
        assert outcome["norms"] == pytest.approx(expected["norms"], rel=1e-5)
        assert outcome["same"]


def attended(strategy: str, own: bool) -> dict[str, Any]:
    """Return this rank's part of attention that isn't causal, and of its gradients: by torch's ring, or our own."""
    from accelerate import Accelerator, ParallelismConfig
    from accelerate.utils import TorchContextParallelConfig

    handler = TorchContextParallelConfig(cp_comm_strategy=strategy)
    accelerator = Accelerator(cpu=True, parallelism_config=ParallelismConfig(cp_size=2, cp_handler=handler))
    axis = accelerator._strategy.axes[0]
    axis.is_on_cpu = own
    inputs = heads()
    parts = [each.clone() for each in inputs]
    with (
        accelerator.maybe_context_parallel(buffers=parts, buffer_seq_dims=[2] * 3, no_restore_buffers=set(parts)),
        nullcontext() if own else sdpa_kernel(SDPBackend.MATH),
    ):
        for each in parts:
            each.requires_grad_()
        found = torch.nn.functional.scaled_dot_product_attention(*parts)
        found.square().mean().backward()
    return {"out": found.detach(), "grads": [each.grad for each in parts], "rank": accelerator.context_parallel_rank}


def heads() -> list[torch.Tensor]:
    """Return queries, keys and values [2 sequences, 2 heads, 8 tokens, 4 numbers]."""
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(2, 2, 8, 4, generator=generator) for _ in range(3)]


@pytest.mark.filterwarnings("ignore:cp_comm_strategy='alltoall' has no effect on the CPU")
@pytest.mark.parametrize("own", [True, False], ids=["own", "ring"])
@pytest.mark.parametrize("strategy", ["allgather", "alltoall"])
def test_attention_that_is_not_causal(pair, strategy, own):
    """fp32: outputs and gradients equal within 1e-6; ranks have the ends and the middle of each sequence."""
    inputs = [each.requires_grad_() for each in heads()]
    whole = torch.nn.functional.scaled_dot_product_attention(*inputs)
    whole.square().mean().backward()
    for each in pair.run(attended, strategy, own):
        mine = torch.tensor([[0, 1, 6, 7], [2, 3, 4, 5]][each["rank"]])
        torch.testing.assert_close(each["out"], whole[:, :, mine], atol=1e-6, rtol=0)
        for found, tensor in zip(each["grads"], inputs, strict=True):
            torch.testing.assert_close(found / 2, tensor.grad[:, :, mine], atol=1e-6, rtol=0)


def read(case: Case) -> dict[str, Any]:
    """Return the batches of this rank, what it gathers for metrics, and its place."""
    accelerator = accelerator_for(case)
    loader = accelerator.prepare(torch.utils.data.DataLoader(torch.arange(8), batch_size=2))
    seen = [batch.tolist() for batch in loader]
    gathered = [number for batch in loader for number in accelerator.gather_for_metrics(batch).tolist()]
    return {"seen": seen, "gathered": gathered, "rank": accelerator.context_parallel_rank}


def test_ranks_that_divide_sequences_see_the_same_data():
    found = world_of(4).run(read, Case(plugin=None, mesh={"cp_size": 2, "dp_replicate_size": 2}))
    halves = [[[0, 1], [4, 5]], [[2, 3], [6, 7]]]
    assert [each["seen"] for each in found] == [halves[0], halves[0], halves[1], halves[1]]
    assert [each["rank"] for each in found] == [0, 1, 0, 1]
    assert all(each["gathered"] == list(range(8)) for each in found)


def pretrained() -> dict[str, Any]:
    """Train a small LLaMA with padded masks in its batches; return its weights."""
    accelerator = accelerator_for(Case(plugin=None, mesh={"cp_size": 2}))
    model = llama()
    model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    for tokens in batches(3, 4):
        inputs, labels = pairs(tokens)
        positions = torch.arange(4)[None]
        with accelerator.maybe_context_parallel(buffers=[inputs, labels, positions], buffer_seq_dims=[1, 1, 1]):
            found = model(input_ids=inputs, labels=labels, shift_labels=labels, position_ids=positions, use_cache=False)
            accelerator.backward(found.loss)
        optimizer.step()
        optimizer.zero_grad()
    return accelerator.get_state_dict(model)


@pytest.mark.libraries
def test_a_model_of_transformers(pair):
    library("transformers")
    found = pair.run(pretrained)[0]
    model = llama()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for tokens in batches(3, 4):
        inputs, labels = pairs(tokens)
        model(input_ids=inputs, labels=labels, shift_labels=labels).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    for name, weight in model.state_dict().items():
        torch.testing.assert_close(found[name], weight, atol=1e-5, rtol=0)


def refused(length: int, dims: list[int]) -> str:
    accelerator = accelerator_for(Case(plugin=None, mesh={"cp_size": 2}))
    try:
        with accelerator.maybe_context_parallel(buffers=[torch.zeros(2, length)], buffer_seq_dims=dims):
            return "nothing was refused"
    except ValueError as error:
        return str(error)


@pytest.mark.parametrize(
    ("length", "dims", "text"),
    [(7, [1], "a length of 6 or 8"), (1, [1], "a length of 2"), (6, [], "1 buffers and 0 buffer_seq_dims")],
)
def test_what_is_refused(pair, length, dims, text):
    for error in pair.run(refused, length, dims):
        assert text in error


def replaced() -> list[Any]:
    """Return what a script's own `_prepare_cp` and `_cp_context` are given."""
    accelerator = accelerator_for(Case(plugin=None, mesh={"cp_size": 2}))
    given: list[Any] = []

    def prepare(*args: Any) -> tuple[Any, ...]:
        given.append(len(args))
        accelerator._cp_context = lambda **kwargs: given.append(sorted(kwargs)) or nullcontext()
        return args

    accelerator._prepare_cp = prepare
    accelerator.prepare(torch.nn.Linear(2, 2))
    with accelerator.maybe_context_parallel(buffers=[torch.zeros(2, 3)], buffer_seq_dims=[1]):
        return given


def test_a_script_may_replace_it(pair):
    assert pair.run(replaced)[0] == [1, ["buffer_seq_dims", "buffers", "no_restore_buffers"]]
