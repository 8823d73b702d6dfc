"""Train a small LLaMA on the text of Python's own library, laid out over processes in any way that a config file says.

The model is that of transformers, with random weights; the text comes with every Python;
nothing is downloaded. How the model is laid out is no business of this script: replicas, shards, divided layers,
divided sequences, a pipeline, or all in one process, it is in the config file alone. `configs` has one for each.

    python examples/llama.py
    accelerate launch --config_file examples/configs/fsdp2_cpu.yaml examples/llama.py
    accelerate launch --config_file examples/configs/fsdp2_tensor_parallel_cpu.yaml examples/llama.py

Whatever the layout, every step sees the same batch, so the weights at the end are those of one process, but for the
last digits (sums are taken in another order). The last lines show numbers to compare.
"""

from __future__ import annotations

import argparse
import json
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import torch
from torch.utils.data import DataLoader, Dataset

from accelerate import Accelerator
from accelerate.utils import DataLoaderConfiguration, set_seed

try:
    from transformers import LlamaConfig, LlamaForCausalLM
except ImportError:
    raise SystemExit("This example trains a model of transformers: pip install transformers") from None


class Text(Dataset[dict[str, torch.Tensor]]):
    """Pieces of `length` bytes of Python's own source: the bytes, their places, and for each the byte that follows."""

    def __init__(self, length: int) -> None:
        self.length = length
        self.bytes = torch.tensor(list(Path(json.__file__).with_name("decoder.py").read_bytes()))

    def __len__(self) -> int:
        return (len(self.bytes) - 1) // self.length

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        start, end = index * self.length, (index + 1) * self.length
        # Labels are shifted beforehand: where sequences are divided, the next byte may be on another rank.
        return {
            "input_ids": self.bytes[start:end],
            "position_ids": torch.arange(self.length),
            "shift_labels": self.bytes[start + 1 : end + 1],
        }


def build_model() -> LlamaForCausalLM:
    """Return a LLaMA that reads bytes, with random weights; LlamaConfig says how its layers can be divided."""
    config = LlamaConfig(
        vocab_size=256,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=4,
        num_attention_heads=4,
        max_position_embeddings=256,
        use_cache=False,
    )
    return LlamaForCausalLM(config)


def divided(accelerator: Accelerator, batch: dict[str, torch.Tensor]) -> AbstractContextManager[None]:
    """Return a context in which each rank has its part of every sequence, where the config file divides sequences."""
    layout = accelerator.parallelism_config
    if layout is None or not layout.cp_enabled:
        return nullcontext()
    buffers = list(batch.values())
    return accelerator.maybe_context_parallel(
        buffers=buffers, buffer_seq_dims=[1] * len(buffers), no_restore_buffers=set(buffers)
    )


def train(steps: int, batch_size: int, length: int, learning_rate: float, output: Path) -> None:
    """Train for `steps` batches and write the weights."""
    # `batch_size` counts the samples of all processes together, so that the layout changes nothing about a step.
    accelerator = Accelerator(
        dataloader_config=DataLoaderConfiguration(split_batches=True, use_seedable_sampler=True, data_seed=0)
    )
    set_seed(0)
    model = build_model()
    loader = DataLoader(Text(length), batch_size=batch_size, shuffle=True, drop_last=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)

    step, loss = 0, torch.zeros(())
    while step < steps:
        for batch in loader:
            with divided(accelerator, batch):
                loss = model(**batch, labels=batch["shift_labels"]).loss
                accelerator.backward(loss)
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
            step += 1
            if step % 10 == 0 or step == steps:
                # Processes that see different text have different losses; their mean is that of the batch.
                mean = accelerator.reduce(loss.detach(), reduction="mean").item()
                accelerator.print(f"step {step:3d}  loss {mean:.4f}")
            if step == steps:
                break

    accelerator.save_model(model, output)
    accelerator.print(f"Trained by {accelerator.num_processes} process(es) on {accelerator.device.type}.")
    accelerator.print(f"Weights  {output / 'model.safetensors'}")
    accelerator.end_training()


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description="Train a small LLaMA, laid out in any way that a config file says.")
    parser.add_argument("--steps", type=int, default=40, help="batches to train on (default: %(default)s)")
    parser.add_argument("--batch_size", type=int, default=8, help="samples in a batch of all (default: %(default)s)")
    parser.add_argument("--length", type=int, default=64, help="bytes in a sample (default: %(default)s)")
    parser.add_argument("--learning_rate", type=float, default=3e-3, help="(default: %(default)s)")
    parser.add_argument("--output", type=Path, default=Path("outputs/llama"), help="folder to write")
    args = parser.parse_args()
    train(args.steps, args.batch_size, args.length, args.learning_rate, args.output)


if __name__ == "__main__":
    main()
