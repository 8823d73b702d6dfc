"""A training by transformers' Trainer, for the tests of this folder: prints the losses and norms of all steps.

python sharded_trainer.py FOLDER [CHECKPOINT]
"""

from __future__ import annotations

import json
import os
import sys

import torch
from torch.utils.data import Dataset
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments, set_seed


class Tokens(Dataset[dict[str, torch.Tensor]]):
    """32 rows of random tokens."""

    def __len__(self) -> int:
        return 32

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        row = torch.randint(0, 64, (16,), generator=torch.Generator().manual_seed(index))
        return {"input_ids": row, "labels": row.clone()}


def main(folder: str, checkpoint: str | None = None) -> None:
    set_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=64, max_position_embeddings=64, use_cache=False, **sizes))
    arguments = TrainingArguments(
        output_dir=folder,
        max_steps=6,
        per_device_train_batch_size=8 // int(os.environ.get("WORLD_SIZE", 1)),
        save_steps=3,
        logging_steps=1,
        learning_rate=1e-2,
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
    )
    trainer = Trainer(model=model, args=arguments, train_dataset=Tokens(), eval_dataset=Tokens())
    trainer.train(resume_from_checkpoint=checkpoint)
    steps = [each for each in trainer.state.log_history if "grad_norm" in each]
    found = {"losses": [float(each["loss"]) for each in steps], "norms": [float(each["grad_norm"]) for each in steps]}
    found["evaluated"] = trainer.evaluate()["eval_loss"]
    if trainer.is_world_process_zero():
        print("FOUND", json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
