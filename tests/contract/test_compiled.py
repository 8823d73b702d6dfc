"""Compiled models, whole or block by block, train to the weights of one process.

aot_eager traces what inductor compiles, forward and backward, in a tenth of the time; one case goes all the way.
"""

from __future__ import annotations

import shutil
from dataclasses import replace
from typing import Any

import pytest
import torch

from .sharded import (
    PLAN,
    V1,
    V2,
    Case,
    accelerator_for,
    build,
    groups,
    loss_of,
    micro_batches,
    reference_case,
    train_case,
)

DIVIDED = Case(plugin=None, mesh={"tp_size": 2}, plan=PLAN, clip=0.1)
RECOMPUTED = Case(plugin={**V2, "activation_checkpointing": True}, clip=0.1, steps=2)
COMPILER = pytest.mark.skipif(shutil.which("c++") is None, reason="inductor needs a C++ compiler")
CASES = {
    "ddp": (Case(plugin=None, clip=0.1, steps=2), "aot_eager", False),
    "fsdp2": (Case(plugin=V2, clip=0.1, steps=2), "aot_eager", False),
    "fsdp2, recomputed, by region": (RECOMPUTED, "aot_eager", True),
    "fsdp1, by region": (Case(plugin=V1, clip=0.1), "aot_eager", True),
    "divided layers": (DIVIDED, "aot_eager", False),
    "divided layers, by region": (DIVIDED, "aot_eager", True),
    "fsdp2, by region, all the way": (Case(plugin=V2, clip=0.1, steps=2), "inductor", True),
}


def train(case: Case) -> dict[str, Any]:
    """Train from a state in which nothing is compiled yet."""
    torch._dynamo.reset()
    return train_case(case)


def train_compiled(case: Case) -> dict[str, Any]:
    """Train a model that the script has compiled; return the whole weights and the norms of clipping."""
    torch._dynamo.reset()
    accelerator = accelerator_for(case)
    model = torch.compile(build(case), backend="aot_eager")
    model, optimizer = accelerator.prepare(model, torch.optim.SGD(groups(model), lr=0.1, momentum=0.9))
    norms = []
    for tokens in micro_batches(case, accelerator.process_index, accelerator.num_processes):
        accelerator.backward(loss_of(model, tokens))
        norms.append(float(accelerator.clip_grad_norm_(model.parameters(), case.clip)))
        optimizer.step()
        optimizer.zero_grad()
    return {"weights": accelerator.get_state_dict(model), "norms": norms}


@pytest.mark.parametrize(
    ("case", "backend", "regional"),
    [pytest.param(*each, marks=COMPILER if "inductor" in each else ()) for each in CASES.values()],
    ids=CASES.keys(),
)
def test_weights_are_those_of_one_process(pair, case, backend, regional):
    """fp32: weights and norms equal within 1e-5."""
    from accelerate.utils import TorchDynamoPlugin

    plugin = TorchDynamoPlugin(backend=backend, use_regional_compilation=regional)
    check(pair.run(train, replace(case, options={"dynamo_plugin": plugin}))[0], reference_case(case))


@pytest.mark.parametrize("plugin", [V2, V1], ids=["fsdp2", "fsdp1"])
def test_a_model_that_is_compiled_already(pair, plugin):
    """fp32: weights and norms equal within 1e-5."""
    case = Case(plugin=plugin, clip=0.1)
    check(pair.run(train_compiled, case)[0], reference_case(case))


def check(outcome: dict[str, Any], expected: dict[str, Any]) -> None:
    """Compare what training has come to."""
    assert outcome["weights"].keys() == expected["weights"].keys()
    assert outcome["norms"] == pytest.approx(expected["norms"], rel=1e-5)
    for name, weight in expected["weights"].items():
        torch.testing.assert_close(outcome["weights"][name], weight, atol=1e-5, rtol=0)
