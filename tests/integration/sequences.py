"""What sequence parallel is tried on: a small LLaMA of transformers, and loops like those that people write.

Everything here is a module-level function, so that the processes of a `World` can be handed it.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Any

import torch

os.environ.setdefault("DS_ACCELERATOR", "cpu")


VOCABULARY, LENGTH = 64, 16
#: Samples in a batch of one process.
ROWS = 2


@dataclass(frozen=True)
class Case:
    """One way to train.

    Args:
        sizes: arguments of `ParallelismConfig`; empty for one process.
        shard: use FSDP2.
        compiled: let torch compile the model.
        replicas: how many batches are computed at a time.
        steps: micro-batches per update.
        updates: how many updates.
        model: settings of the model that differ.
        count: how many samples there are.
    """

    sizes: dict[str, int] = field(default_factory=dict)
    shard: bool = False
    compiled: bool = False
    replicas: int = 1
    steps: int = 1
    updates: int = 20
    model: dict[str, Any] = field(default_factory=dict)
    count: int = 80


def llama(**facts: Any) -> Any:
    """Return the model, with the same random weights at every call."""
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "max_position_embeddings": 64}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2}
    torch.manual_seed(0)
    return LlamaForCausalLM(LlamaConfig(**{"vocab_size": VOCABULARY, **sizes, **heads, "use_cache": False, **facts}))


def samples(count: int) -> list[dict[str, torch.Tensor]]:
    """Return samples of which more or fewer tokens are trained, on some ranks none."""
    generator = torch.Generator().manual_seed(1)
    tokens = torch.randint(0, VOCABULARY, (count, LENGTH), generator=generator)
    labels = tokens.clone()
    for number in range(count):
        labels[number, : number * 5 % 14] = -100
    return [{"input_ids": tokens[number], "labels": labels[number]} for number in range(count)]


def loader_of(case: Case) -> Any:
    """Return the loader of a case; one process reads together what replicas read at the same time."""
    data, rows = samples(case.count), ROWS
    turn = case.sizes.get("sp_size", 1)
    if not case.sizes and case.replicas > 1:  # what two ranks that take turns read, in two replicas
        turn, rows = 2, ROWS * case.replicas
        read = [
            (first + (replica * turn + place) * ROWS + row)
            for first in range(0, case.count, case.replicas * turn * ROWS)
            for place in range(turn)
            for replica in range(case.replicas)
            for row in range(ROWS)
        ]
        data = [data[number] for number in read]
    return torch.utils.data.DataLoader(data, batch_size=rows)


def prepared(case: Case) -> tuple[Any, Any, Any, Any]:
    """Return an `Accelerator` for a case, with model, optimizer and loader."""
    from accelerate import Accelerator, FullyShardedDataParallelPlugin, ParallelismConfig
    from accelerate.utils import TorchDynamoPlugin

    arguments: dict[str, Any] = {}
    if case.sizes:
        arguments["parallelism_config"] = ParallelismConfig(**case.sizes)
    if case.shard:
        arguments["fsdp_plugin"] = FullyShardedDataParallelPlugin(
            fsdp_version=2, auto_wrap_policy="TRANSFORMER_BASED_WRAP"
        )
    if case.compiled:
        arguments["dynamo_plugin"] = TorchDynamoPlugin(backend="eager")
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=case.steps, **arguments)
    model = llama(**case.model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    return accelerator, *accelerator.prepare(model, optimizer, loader_of(case))


def whole_labels(batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return a batch of one process with labels as divided batches have them."""
    if "shift_labels" in batch:
        return batch
    labels = torch.nn.functional.pad(batch["labels"], (0, 1), value=-100)[:, 1:].contiguous()
    return {"input_ids": batch["input_ids"], "shift_labels": labels}


def step(accelerator: Any, model: Any, optimizer: Any, batch: dict[str, torch.Tensor]) -> float | None:
    """Train on one micro-batch as docs/sharded.md shows; return the norm of the gradients where there is an update."""
    batch, norm = whole_labels(batch), None
    with accelerator.accumulate(model, num_items=(batch["shift_labels"] != -100).sum()):
        loss = model(**batch, labels=batch["shift_labels"]).loss
        accelerator.backward(loss)
        if accelerator.sync_gradients:
            norm = float(accelerator.clip_grad_norm_(model.parameters(), 0.5))
        optimizer.step()
        optimizer.zero_grad()
    return norm


def train(case: Case) -> dict[str, Any]:
    """Train and return the weights (on rank 0) and the norms."""
    accelerator, model, optimizer, loader = prepared(case)
    norms: list[float] = []
    while len(norms) < case.updates:
        for batch in loader:
            norm = step(accelerator, model, optimizer, batch)
            norms += [] if norm is None else [norm]
            if len(norms) == case.updates:
                break
    return {"weights": weights(accelerator, model), "norms": norms, "length": len(loader)}


def train_by_hand(case: Case) -> dict[str, Any]:
    """Train as the authors of ALST do: losses averaged over the ranks of the axis, weighted by their tokens."""
    from deepspeed.utils import groups
    from torch.distributed.nn.functional import all_gather

    accelerator, model, optimizer, loader = prepared(case)
    group = groups._get_sequence_parallel_group()
    for number, batch in enumerate(loader, 1):
        loss = model(**batch, labels=batch["shift_labels"]).loss
        tokens = torch.stack(all_gather((batch["shift_labels"] != -100).sum(), group=group))
        losses = torch.stack(all_gather(loss, group=group))
        accelerator.backward((torch.where(tokens > 0, losses, 0.0) * tokens).sum() / tokens.sum())
        accelerator.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        optimizer.zero_grad()
        if number == case.updates:
            break
    return {"weights": weights(accelerator, model)}


def resume(case: Case, folder: str, place: int) -> dict[str, Any]:
    """Train for an epoch, saving after `place` micro-batches; then go on from there with everything new."""
    accelerator, model, optimizer, loader = prepared(case)
    for number, batch in enumerate(loader, 1):
        step(accelerator, model, optimizer, batch)
        if number == place:
            accelerator.save_state(folder)
    expected = weights(accelerator, model)
    accelerator.free_memory()
    accelerator, model, optimizer, loader = prepared(case)
    accelerator.load_state(folder)
    count = 0
    for batch in loader:
        step(accelerator, model, optimizer, batch)
        count += 1
    return {"expected": expected, "weights": weights(accelerator, model), "count": count}


def weights(accelerator: Any, model: Any) -> dict[str, torch.Tensor]:
    """Return the whole weights, on the main process."""
    return {name: each.clone() for name, each in accelerator.get_state_dict(model).items()}


def evaluate() -> dict[str, Any]:
    """Compare logits: of whole sequences inside of training, of divided ones, and those of the bare model."""
    accelerator, model, _, loader = prepared(Case(sizes={"sp_size": 2}, model={"num_key_value_heads": 1}))
    other = accelerator.prepare(torch.utils.data.DataLoader(samples(4), batch_size=ROWS))
    bare, size = llama(num_key_value_heads=1).eval(), accelerator.num_processes
    found = []
    for number, batch in enumerate(loader):
        with torch.no_grad():
            model.train()
            model(**batch)
            model.eval()
            part = model(**batch).logits
            whole = bare(torch.stack([each["input_ids"] for each in samples(ROWS * (number + 1))[-ROWS:]])).logits
            expected = whole.chunk(size, dim=1)[accelerator.process_index]
            found.append((part - expected).abs().max().item())
            for undivided in other:
                tokens = undivided["input_ids"]
                found.append((model(tokens).logits - bare(tokens).logits).abs().max().item())
        if number == 1:
            break
    return {"differences": found, "groups": bare.model.layers[0].self_attn.num_key_value_groups}


@torch.no_grad()
def lengths() -> list[float]:
    """Compute losses of batches of other lengths and rows; return their differences from one process."""
    accelerator, model, _, _ = prepared(Case(sizes={"sp_size": 2}))
    data = [{name: each[: 4 + number % 3 * 2] for name, each in one.items()} for number, one in enumerate(samples(5))]
    sampler = [[0, 3], [1, 4], [2], [2]]  # batches of one length each
    loader = accelerator.prepare_data_loader(torch.utils.data.DataLoader(data, batch_sampler=sampler))
    found = []
    for number, batch in enumerate(accelerator.deepspeed_ulysses_dl_adapter(loader, model)):
        tokens = accelerator.gather((batch["shift_labels"] != -100).sum()[None])
        loss = model(**batch, labels=batch["shift_labels"]).loss
        losses = accelerator.gather(loss.detach()[None])
        mean = (torch.where(tokens > 0, losses, 0.0) * tokens).sum() / tokens.sum()
        whole = whole_labels({name: torch.stack([data[i][name] for i in sampler[number]]) for name in data[0]})
        expected = llama()(**whole, labels=whole["shift_labels"]).loss
        found.append((mean - expected).abs().item())
    return found


def refused() -> str:
    """Return what a batch that can't be divided raises on this rank."""
    accelerator, model, _, _ = prepared(Case(sizes={"sp_size": 2}))
    odd = [{name: each[: LENGTH - number % 2] for name, each in one.items()} for number, one in enumerate(samples(2))]
    loader = accelerator.prepare_data_loader(torch.utils.data.DataLoader(odd, batch_size=1))
    try:
        next(iter(accelerator.deepspeed_ulysses_dl_adapter(loader, model)))
    except ValueError as error:
        return str(error)
    return "nothing was refused"


def with_trainer(sp_size: int, shard: bool, folder: str, again: bool = False) -> dict[str, Any]:
    """Train with transformers' Trainer for an epoch, or go on from its first checkpoint."""
    from transformers import Trainer, TrainingArguments

    from accelerate import ParallelismConfig
    from accelerate.utils import DeepSpeedSequenceParallelConfig

    options: dict[str, Any] = {}
    if sp_size > 1:
        handler = DeepSpeedSequenceParallelConfig(sp_attn_implementation="sdpa")
        options["parallelism_config"] = ParallelismConfig(sp_size=sp_size, sp_handler=handler)
    if shard:
        options["fsdp"] = "full_shard auto_wrap"
        options["fsdp_config"] = {"fsdp_version": 2, "transformer_layer_cls_to_wrap": ["LlamaDecoderLayer"]}
    arguments = TrainingArguments(
        folder,
        per_device_train_batch_size=ROWS,
        num_train_epochs=1,
        learning_rate=1e-2,
        optim="sgd",
        lr_scheduler_type="constant",
        use_cpu=True,
        report_to=[],
        logging_steps=1,
        save_steps=5,
        eval_strategy="epoch",
        disable_tqdm=True,
        train_sampling_strategy="sequential",
        **options,
    )
    trainer = Trainer(llama(), arguments, train_dataset=samples(20), eval_dataset=samples(8))
    trainer.train(resume_from_checkpoint=f"{folder}/checkpoint-5" if again else None)
    return {
        "weights": weights(trainer.accelerator, trainer.model_wrapped),
        "steps": trainer.state.global_step,
        "losses": [each["loss"] for each in trainer.state.log_history if "loss" in each],
        "eval_loss": [each["eval_loss"] for each in trainer.state.log_history if "eval_loss" in each],
    }
