"""What training LLaMA shapes takes on 8, 64 and 1,024 ranks: computed, and counted in a simulated process group.

`python -m benchmarks.parallel_plans` writes `results/parallel_plans.json`, from which `python -m docs.generate` makes
the table in docs/sharded.md. Nothing here is measured: the figures are the same on every machine. Each mesh is computed
by formulas; where torch can simulate it, the model is sharded on the meta device as the first and the last rank do it,
and an update of two layers of the same width is run. Both have to agree with the formulas, byte by byte.
"""

from __future__ import annotations

import json
import sys
import time
from dataclasses import asdict
from typing import Any

import torch

from accelerate.big_modeling.llama import CONFIGS, LlamaForCausalLM
from accelerate.big_modeling.shapes import Shape
from accelerate.strategies.planning.facts import Subject
from accelerate.strategies.planning.meshes import Mesh, parse_mesh
from accelerate.strategies.planning.plan import Plan, plan_mesh
from accelerate.strategies.planning.simulate import simulate_mesh
from accelerate.strategies.planning.traffic import KINDS
from accelerate.strategies.planning.training import Training
from benchmarks.harness import RESULTS

RESULT = RESULTS / "parallel_plans.json"
TRAINING = Training(activation_checkpointing=True, num_microbatches=8)
MESHES = (
    "dp_replicate=8",
    "dp_shard=8",
    "dp_shard=4,tp=2",
    "tp=8",
    "dp_shard=64",
    "dp_replicate=8,dp_shard=8",
    "dp_shard=8,tp=8",
    "pp=8,tp=8",
    "dp_shard=1024",
    "dp_replicate=128,dp_shard=8",
    "dp_shard=128,tp=8",
    "dp_shard=128,cp=8",
    "pp=8,dp_replicate=16,tp=8",
)


def subject(name: str, layers: int | None = None) -> Subject:
    """Return a shape by name, with fewer layers if they are given."""
    config = CONFIGS[name] | ({} if layers is None else {"num_hidden_layers": layers})
    with torch.device("meta"):
        model = LlamaForCausalLM(config)
    return Subject(model, Shape.of({**config, "model_type": "llama"}), ("LlamaDecoderLayer",))


def row(name: str, found: Plan) -> dict[str, Any]:
    """Return a plan by name: the memory of the fullest rank, and what the busiest one sends."""
    busiest = max(found.ranks, key=lambda each: each.total)
    return {
        "model": name,
        "mesh": str(found.mesh),
        "ranks": found.mesh.size,
        "tokens": found.tokens,
        "memory": asdict(found.fullest.memory),
        "sent": {kind: busiest.sent(kind) for kind in KINDS},
        "all": busiest.total,
    }


def simulated(name: str, whole: Subject, mesh: Mesh) -> dict[str, Any] | None:
    """Return what a simulation says of a mesh, None for those that aren't simulated.

    Raises:
        SystemExit: it differs from the formulas.
    """
    if mesh.pp > 1:
        return None
    how = Training(**{**asdict(TRAINING), "cp_comm_strategy": "cpu", "num_microbatches": 1})
    parameters = {}
    for label, number in (("first", 0), ("last", mesh.size - 1)):
        found = simulate_mesh(whole, mesh, how, rank=number, step=None)
        _agree(name, mesh, found.differences(plan_mesh(whole, mesh, how).ranks[0 if number == 0 else -1]))
        parameters[label] = {"parameters": found.parameters, "elements": found.elements}
    few = subject(name, 2)
    planned, ran = plan_mesh(few, mesh, how).ranks[0], simulate_mesh(few, mesh, how)
    _agree(name, mesh, ran.differences(planned))
    peak = ran.peak or 0
    return {**parameters, "two_layers": {"peak": peak, "computed": planned.memory.peak}}


def _agree(name: str, mesh: Mesh, differences: list[str]) -> None:
    if differences:
        raise SystemExit(f"{name} on {mesh}: " + "; ".join(differences))


def main() -> int:
    """Compute and simulate every mesh for every shape, and write the figures."""
    rows = []
    for name in CONFIGS:
        whole = subject(name)
        for text in MESHES:
            mesh, start = parse_mesh(text), time.perf_counter()
            found = row(name, plan_mesh(whole, mesh, TRAINING))
            rows.append(found | {"simulated": simulated(name, whole, mesh)})
            print(f"{name} on {mesh}: {time.perf_counter() - start:.1f} s", flush=True)
    content = {"computed": "not measured", "training": asdict(TRAINING), "plans": rows}
    RESULT.write_text(json.dumps(content, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
