"""What sharded strategies are tried on: ways to shard, and a model with what real ones have.

Everything here is a module-level function, so that the processes of a `World` can be handed it.
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import nn

VOCABULARY, WIDTH, LENGTH = 12, 8, 6

#: Settings of FSDP whose units are the blocks of a model, in both versions.
V2 = {"fsdp_version": 2, "auto_wrap_policy": "TRANSFORMER_BASED_WRAP"}
V1 = {"use_orig_params": True, "auto_wrap_policy": "TRANSFORMER_BASED_WRAP"}


class Attention(nn.Module):
    """Attention with heads that can be divided: queries, keys and values have layers of their own."""

    def __init__(self, width: int = WIDTH, heads: int = 4) -> None:
        super().__init__()
        self.size = width // heads
        self.q_proj, self.k_proj, self.v_proj = (
            nn.Linear(width, width),
            nn.Linear(width, width),
            nn.Linear(width, width),
        )
        self.o_proj = nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        heads = [
            layer(x).unflatten(-1, (-1, self.size)).transpose(1, 2) for layer in (self.q_proj, self.k_proj, self.v_proj)
        ]
        y = nn.functional.scaled_dot_product_attention(*heads, is_causal=True)
        return self.o_proj(y.transpose(1, 2).flatten(-2))


class Block(nn.Module):
    """Attention and a feed-forward layer, each with a residual connection."""

    def __init__(self, width: int = WIDTH) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        self.gain = nn.Parameter(torch.ones(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.norm1(x)) * self.gain
        return x + self.down(nn.functional.gelu(self.up(self.norm2(x))))


#: How a language model is divided.
PLAN = {
    **{f"layers.*.attention.{name}_proj": "colwise" for name in "qkv"},
    "layers.*.attention.o_proj": "rowwise",
    "layers.*.up": "colwise",
    "layers.*.down": "rowwise",
}
#: With the embeddings and the output layer, which may be one parameter.
WHOLE_PLAN = {**PLAN, "embeddings": "rowwise", "head": "colwise_gather_output"}


class Language(nn.Module):
    """A small language model with embeddings, blocks, a norm, an output layer and a buffer that isn't saved."""

    _no_split_modules = ("Block", "NotInThisModel")

    def __init__(self, tied: bool = False, blocks: int = 3) -> None:
        super().__init__()
        self.embeddings = nn.Embedding(VOCABULARY, WIDTH)
        self.layers = nn.ModuleList(Block() for _ in range(blocks))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.register_buffer("scale", torch.full((1,), 0.7), persistent=False)
        if tied:
            self.head.weight = self.embeddings.weight

    def get_input_embeddings(self) -> nn.Module:
        return self.embeddings

    def get_output_embeddings(self) -> nn.Module:
        return self.head

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embeddings(tokens) * self.scale
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


def language(seed: int = 0, **facts: Any) -> Language:
    """Return the model with the weights of `seed`."""
    torch.manual_seed(seed)
    return Language(**facts)


def batches(count: int, size: int) -> list[torch.Tensor]:
    """Return `count` batches [size, LENGTH] of tokens."""
    generator = torch.Generator().manual_seed(3)
    return [torch.randint(0, VOCABULARY, (size, LENGTH), generator=generator) for _ in range(count)]


def loss_of(model: nn.Module, tokens: torch.Tensor) -> torch.Tensor:
    """Return the mean loss of predicting each token from those before it."""
    logits = model(tokens[:, :-1]).float()
    return nn.functional.cross_entropy(logits.reshape(-1, VOCABULARY), tokens[:, 1:].reshape(-1))


def groups(model: nn.Module) -> list[dict[str, Any]]:
    """Return two groups of parameters: weights with decay, the others without and with another rate."""
    trained = [each for each in model.parameters() if each.requires_grad]
    return [
        {"params": [each for each in trained if each.ndim > 1], "weight_decay": 0.1},
        {"params": [each for each in trained if each.ndim < 2], "weight_decay": 0.0, "lr": 0.2},
    ]


@dataclass(frozen=True)
class Case:
    """One way to train the language model.

    Args:
        plugin: arguments of the FSDP plugin; "auto_wrap_policy" by name.
        mesh: arguments of `ParallelismConfig`, or None.
        plan: how layers are divided along the axis for tensor parallel.
        tied: the output layer is the embeddings.
        frozen: names of modules that are not trained.
        steps: micro-batches per update.
        clip: the norm to clip to.
        precision: mixed precision.
        seeds: rank r starts from the weights of seed r rather than seed 0.
        meta: ranks other than 0 start on the meta device.
        options: further arguments of `Accelerator`.
    """

    plugin: dict[str, Any] | None = field(
        default_factory=lambda: {"fsdp_version": 2, "auto_wrap_policy": "TRANSFORMER_BASED_WRAP"}
    )
    mesh: dict[str, int] | None = None
    plan: dict[str, Any] | None = None
    tied: bool = False
    frozen: tuple[str, ...] = ()
    steps: int = 1
    clip: float | None = None
    precision: str = "no"
    seeds: bool = False
    meta: bool = False
    no_sync: bool = False
    updates: int = 5
    options: dict[str, Any] = field(default_factory=dict)


def accelerator_for(case: Case) -> Any:
    """Return an `Accelerator` on the CPU for a case."""
    from accelerate import Accelerator, FullyShardedDataParallelPlugin

    arguments = dict(case.options)
    if case.plugin is not None:
        arguments["fsdp_plugin"] = FullyShardedDataParallelPlugin(**case.plugin)
    if case.mesh is not None:
        from accelerate import ParallelismConfig
        from accelerate.utils import TorchTensorParallelConfig

        handler = None if case.plan is None else TorchTensorParallelConfig(plan=case.plan)
        arguments["parallelism_config"] = ParallelismConfig(**case.mesh, tp_handler=handler)
    return Accelerator(cpu=True, mixed_precision=case.precision, gradient_accumulation_steps=case.steps, **arguments)


def build(case: Case, rank: int = 0) -> Language:
    """Return the bare model that this rank starts with."""
    with torch.device("meta" if case.meta and rank else "cpu"):
        model = language(rank if case.seeds else 0, tied=case.tied)
    for name in case.frozen:
        model.get_submodule(name).requires_grad_(False)
    return model


def micro_batches(case: Case, shard: int, shards: int) -> list[torch.Tensor]:
    """Return the micro-batches of one share of the data."""
    return [batch.chunk(shards)[shard] for batch in batches(case.updates * case.steps, 8)]


def train_case(case: Case) -> dict[str, Any]:
    """Train on this rank; return the whole weights (rank 0), the norms of clipping, and what a rank holds."""
    accelerator = accelerator_for(case)
    model = build(case, accelerator.process_index)
    optimizer = torch.optim.SGD(groups(model), lr=0.1, momentum=0.9)
    model, optimizer = accelerator.prepare(model, optimizer)
    mesh = accelerator.torch_device_mesh if case.mesh is not None else None
    shard = share_of(accelerator, mesh)
    found: list[float] = []
    losses: list[float] = []
    for number, tokens in enumerate(micro_batches(case, *shard), 1):
        with _micro_batch(accelerator, model, case, number % case.steps == 0):
            loss = loss_of(model, tokens)
            accelerator.backward(loss)
            losses.append(loss.item())
            if number % case.steps == 0:
                if case.clip is not None:
                    found.append(float(accelerator.clip_grad_norm_(model.parameters(), case.clip)))
                optimizer.step()
                optimizer.zero_grad()
    held = sum(local(parameter).numel() for parameter in model.parameters())
    return {"weights": accelerator.get_state_dict(model), "norms": found, "held": held, "losses": losses}


def _micro_batch(accelerator: Any, model: nn.Module, case: Case, due: bool) -> Any:
    """Return the context of a micro-batch: `accumulate`, or `no_sync` where the script decides itself."""
    if not case.no_sync:
        return accelerator.accumulate(model)
    return nullcontext() if due else accelerator.no_sync(model)


def share_of(accelerator: Any, mesh: Any) -> tuple[int, int]:
    """Return which share of the data this rank trains on, and of how many."""
    from accelerate.data_loader.shares import DataShard

    shard = DataShard.of(accelerator.process_index, accelerator.num_processes, mesh)
    return shard.index, shard.count


def local(tensor: torch.Tensor) -> torch.Tensor:
    """Return what this rank holds of a tensor."""
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def reference_case(case: Case) -> dict[str, Any]:
    """Train the same in one process, with nothing but torch."""
    model = build(case)
    optimizer = torch.optim.SGD(groups(model), lr=0.1, momentum=0.9)
    found: list[float] = []
    for number, tokens in enumerate(micro_batches(case, 0, 1), 1):
        with torch.autocast("cpu", torch.bfloat16, enabled=case.precision == "bf16"):
            loss = loss_of(model, tokens)
        (loss / case.steps).backward()
        if number % case.steps == 0:
            if case.clip is not None:
                found.append(float(torch.nn.utils.clip_grad_norm_(model.parameters(), case.clip)))
            optimizer.step()
            optimizer.zero_grad()
    whole = sum(parameter.numel() for parameter in model.parameters())
    return {"weights": model.state_dict(), "norms": found, "held": whole}


def library(name: str) -> Any:
    """Return a library that is not among the requirements of the tests, or skip the test."""
    return pytest.importorskip(name, reason=f"{name} is not in the test extra; `make test-integration` brings it")


def llama() -> Any:
    """Return a LLaMA of transformers, as small as one can be."""
    transformers = library("transformers")
    torch.manual_seed(0)
    return transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=4, vocab_size=12
        )
    )
