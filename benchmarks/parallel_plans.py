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


def simulated(name: str, whole: Subject, mesh: Mesh) -> dict[str, Any]:
    """Return what a simulation says of a mesh.

    Raises:
        SystemExit: it differs from the formulas.
    """
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


def write(rows: list[dict[str, Any]]) -> None:
    """Write the figures."""
    content = {"computed": "not measured", "training": asdict(TRAINING), "plans": rows}
    RESULT.write_text(json.dumps(content, indent=1) + "\n")


def known() -> dict[tuple[str, str], dict[str, Any]]:
    """Return the rows that are written already, by model and mesh."""
    rows = json.loads(RESULT.read_text())["plans"] if RESULT.exists() else []
    return {(each["model"], each["mesh"]): each for each in rows}


def main() -> int:
    """Compute every mesh for every shape, then simulate those whose figures are new; write as far as it has come."""
    before, rows = known(), []
    subjects = {name: subject(name) for name in CONFIGS}
    for name, whole in subjects.items():
        for text in MESHES:
            found = row(name, plan_mesh(whole, parse_mesh(text), TRAINING)) | {"simulated": None}
            old = before.get((name, found["mesh"]), found)
            rows.append(old if old | {"simulated": None} == found else found)
    write(rows)
    for found in rows:
        mesh, start = parse_mesh(found["mesh"]), time.perf_counter()
        if found["simulated"] is None and mesh.pp == 1:
            found["simulated"] = simulated(found["model"], subjects[found["model"]], mesh)
            print(f"{found['model']} on {mesh}: {time.perf_counter() - start:.1f} s", flush=True)
            write(rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
