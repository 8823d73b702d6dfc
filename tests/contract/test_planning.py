"""Plans against real runs: what processes really hold and send is what `accelerate estimate-memory` says."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import Any

import pytest
import torch
from torch.distributed.tensor import DTensor

from accelerate.big_modeling.llama import LlamaForCausalLM
from accelerate.big_modeling.shapes import Shape
from accelerate.strategies.planning.facts import Subject
from accelerate.strategies.planning.meshes import Mesh
from accelerate.strategies.planning.plan import plan_mesh
from accelerate.strategies.planning.training import Training

from .conftest import world_of

CONFIG = {
    "hidden_size": 32,
    "intermediate_size": 88,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
LENGTH = 16


def language_model(mesh: Mesh) -> LlamaForCausalLM:
    """Return a small model; shards of its 501 tokens leave a rest, divided layers can't."""
    return LlamaForCausalLM(CONFIG | {"vocab_size": 502 if mesh.tp > 1 else 501})


CASES = {
    "replicas": (Mesh(dp_replicate=2), Training(precision="bf16", optimizer="sgd_momentum")),
    "shards": (Mesh(dp_shard=2), Training(precision="fp32", activation_checkpointing=True)),
    "shards, bf16": (Mesh(dp_shard=2), Training(precision="bf16", reshard_after_forward=False)),
    "tensor parallel": (Mesh(tp=2), Training(precision="fp32")),
    "pipeline": (Mesh(pp=2), Training(precision="fp32")),
    "pipeline of divided layers": (Mesh(pp=2, tp=2), Training(precision="fp32")),
}


def held(tensors: Any) -> int:
    """Return the bytes of the storages of what this process has of tensors."""
    local = [each.to_local() if isinstance(each, DTensor) else each for each in tensors]
    storages = [each.untyped_storage() for each in local]
    return sum({each.data_ptr(): each.nbytes() for each in storages if each.nbytes()}.values())


def train(mesh: Mesh, training: Training) -> dict[str, Any]:
    """Train for one update; return what this process holds, and the payloads that it sends where Python sees them."""
    from accelerate import Accelerator, FullyShardedDataParallelPlugin, ParallelismConfig
    from accelerate.strategies.planning.watch import Watch
    from accelerate.utils import PipelineParallelConfig

    plugin = FullyShardedDataParallelPlugin(
        fsdp_version=2,
        auto_wrap_policy="TRANSFORMER_BASED_WRAP",
        reshard_after_forward=training.reshard_after_forward,
        activation_checkpointing=training.activation_checkpointing,
    )
    handler = PipelineParallelConfig(num_microbatches=training.num_microbatches) if mesh.pp > 1 else None
    sizes = {f"{axis}_size": size for axis, size in mesh.sizes().items()}
    layout = ParallelismConfig(**sizes, pp_handler=handler)
    accelerator = Accelerator(
        cpu=True,
        mixed_precision="no" if training.precision == "fp32" else training.precision,
        fsdp_plugin=plugin if mesh.is_sharded else None,
        parallelism_config=layout,
    )
    model: Any = language_model(mesh)
    kinds: dict[str, Any] = {"adamw": torch.optim.AdamW, "sgd_momentum": torch.optim.SGD}
    settings = {"momentum": 0.9} if training.optimizer == "sgd_momentum" else {}
    optimizer: Any = kinds[training.optimizer](model.parameters(), lr=1e-3, **settings)
    model, optimizer = accelerator.prepare(model, optimizer)
    tokens = torch.zeros(training.num_microbatches or mesh.pp, LENGTH, dtype=torch.int64)
    with Watch(defaultdict(lambda: ("all", 2))) as watch:
        accelerator.backward(model(input_ids=tokens, labels=tokens))
    own = [each for each in model.parameters() if not getattr(each, "is_elsewhere", False)]
    gradients = [each.grad for each in own if each.grad is not None]
    optimizer.step()
    states = [each for state in optimizer.optimizer.state.values() for each in state.values()]
    sent: Counter[str] = Counter()
    for each in watch.messages:
        sent[each.kind] += each.payload
    found = {"parameters": held(own), "gradients": held(gradients), "optimizer": held(states)}
    return {"held": found, "sent": dict(sent)}


@pytest.mark.parametrize(("mesh", "training"), CASES.values(), ids=CASES.keys())
def test_processes_hold_what_is_planned(mesh, training):
    """Storages of parameters, gradients and states, byte by byte; and messages of shards and divided layers."""
    how = Training(**{**vars(training), "sequence_length": LENGTH})
    model = language_model(mesh)
    subject = Subject(model, Shape.of(model.config), ("LlamaDecoderLayer",))
    planned = plan_mesh(subject, mesh, how).ranks
    for number, outcome in enumerate(world_of(mesh.size).run(train, mesh, training)):
        stage, inner = divmod(number, mesh.size // mesh.pp)
        rank = next(each for each in planned if (each.stage, each.shard) == (stage, inner // mesh.tp % mesh.shards))
        names = ("parameters", "gradients", "optimizer")
        assert outcome["held"] == {name: getattr(rank.memory, name) for name in names}
        # DDP sends where Python doesn't see it; a pipeline runs its first batch once more, to learn shapes.
        kinds = () if mesh.is_ddp or mesh.pp > 1 else ("all_gather", "reduce_scatter", "all_reduce")
        sent = {kind: sum(each.payload for each in rank.messages if each.kind == kind) for kind in kinds}
        assert {kind: outcome["sent"].get(kind, 0) for kind in kinds} == sent
