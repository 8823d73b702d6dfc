"""Train on a machine that may be taken away at any moment, and go on as if nothing had happened.

    accelerate launch --cpu --num_processes 2 --max_restarts 3 examples/preemption.py --project runs/preemption

Send any of its processes a signal (`kill -USR1 PID`, the numbers are printed): all of them finish the step they are in,
save, and leave with code 75. The launch starts them again, and they go on with the batch that comes next. Signal the
launch itself (`kill PID`, as a scheduler does) and everything ends; the same command line then takes it up again.

Three lines do it, marked with (1) to (3). The training loop stays a training loop. At the end the weights are the same,
to the last bit, as those of a run that was left in peace; the last line shows a number to compare.
"""

from __future__ import annotations

import argparse
import os
import signal
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from accelerate import Accelerator
from accelerate.utils import ProjectConfiguration, set_seed


def load_data() -> DataLoader:
    """Return 2,048 points on a noisy surface, in batches of 16 and in random order."""
    generator = torch.Generator().manual_seed(0)
    points = torch.rand(2048, 2, generator=generator) * 6 - 3
    heights = torch.sin(points[:, :1]) * torch.cos(points[:, 1:])
    noise = 0.05 * torch.randn(2048, 1, generator=generator)
    return DataLoader(TensorDataset(points, heights + noise), batch_size=16, shuffle=True)


def train(project: str, epochs: int, pause: float) -> None:
    """Train a small network for `epochs` epochs, with a pause (in seconds) after each step to watch it."""
    # (1) Where checkpoints go. They are numbered, and the newest three are kept.
    accelerator = Accelerator(
        project_config=ProjectConfiguration(project, automatic_checkpoint_naming=True, total_limit=3)
    )
    set_seed(0, device_specific=False)
    model = nn.Sequential(nn.Linear(2, 64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs)
    set_seed(0, device_specific=True)  # every process drops out other units
    model, optimizer, loader = accelerator.prepare(model, optimizer, load_data())
    accelerator.register_for_checkpointing(scheduler)  # it moves once an epoch, in this loop

    # (2) Go on where the last run was, if there was one.
    start = accelerator.resume()
    # (3) From now on a signal to any process makes all of them save and leave, between two steps.
    accelerator.checkpoint_on_signal(signal.SIGTERM, signal.SIGUSR1)

    where = f"from batch {start.batches} of epoch {start.epoch} in {start.folder.name}" if start else "at the beginning"
    print(f"Process {accelerator.process_index} ({os.getpid()}) starts {where}.", flush=True)
    for epoch in range(start.epoch, epochs):
        for points, heights in loader:
            loss = nn.functional.mse_loss(model(points), heights)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            time.sleep(pause)
        scheduler.step()
        accelerator.print(f"Epoch {epoch + 1} of {epochs} is done.", flush=True)
    weights = torch.cat([parameter.detach().double().flatten() for parameter in model.parameters()])
    accelerator.print(f"All weights, squared and added: {weights.square().sum().item()!r}")
    accelerator.end_training()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--project", default="runs/preemption", help="where checkpoints go")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--pause", type=float, default=0.02, help="seconds between two steps")
    arguments = parser.parse_args()
    train(arguments.project, arguments.epochs, arguments.pause)
