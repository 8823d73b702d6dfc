"""Train a small convolutional network on handwritten digits, on one process or on many.

The data are the 1,797 real 8x8 images of scikit-learn's `load_digits`; nothing is downloaded. The same file runs with

    python examples/digits.py
    torchrun --nproc_per_node 2 examples/digits.py
    accelerate launch --cpu --num_processes 2 examples/digits.py

Five lines make an ordinary PyTorch loop into one that runs anywhere; each is marked with (1) to (5) below.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import torch
from matplotlib.ticker import MaxNLocator
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from accelerate import Accelerator
from accelerate.utils import set_seed


def load_data(batch_size: int) -> tuple[DataLoader, DataLoader]:
    """Return loaders over 1,437 images to train on and 360 held-out ones, the ten digits in equal parts."""
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16.0
    labels = torch.tensor(digits.target)
    train, held_out = train_test_split(range(len(labels)), test_size=360, stratify=digits.target, random_state=0)
    return (
        DataLoader(TensorDataset(images[train], labels[train]), batch_size=batch_size, shuffle=True),
        DataLoader(TensorDataset(images[held_out], labels[held_out]), batch_size=batch_size),
    )


def build_model() -> nn.Module:
    """Return a network of two convolutions and one linear layer, 29 thousand weights."""
    return nn.Sequential(
        nn.Conv2d(1, 32, kernel_size=3, padding=1),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.Conv2d(32, 64, kernel_size=3, padding=1),
        nn.BatchNorm2d(64),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Dropout(0.5),
        nn.Linear(64 * 4 * 4, 10),
    )


@torch.no_grad()
def evaluate(accelerator: Accelerator, model: nn.Module, loader: DataLoader) -> tuple[int, int]:
    """Return how many held-out images were classified rightly, and how many there were, over all processes."""
    model.eval()
    right = total = 0
    for images, labels in loader:
        guesses = model(images).argmax(dim=1)
        # (5) Every process sees a part of the images. This collects them all, each image exactly once, though
        #     the last batch was filled up so that every process had the same number of images to work on.
        guesses, labels = accelerator.gather_for_metrics((guesses, labels))
        right += (guesses == labels).sum().item()
        total += len(labels)
    model.train()
    return right, total


def draw_curve(losses: list[float], accuracies: list[float], path: Path) -> None:
    """Draw loss and held-out accuracy, epoch by epoch."""
    epochs = range(1, len(losses) + 1)
    figure, left = plt.subplots(figsize=(7, 4), layout="constrained")
    left.plot(epochs, losses, color="tab:blue", marker="o", markersize=3)
    left.set(xlabel="epoch", title="Handwritten digits: loss, and accuracy on held-out images")
    left.set_ylabel("training loss", color="tab:blue")
    left.grid(alpha=0.3)
    right = left.twinx()
    right.plot(epochs, [100 * accuracy for accuracy in accuracies], color="tab:orange", marker="o", markersize=3)
    right.set_ylabel("accuracy, %", color="tab:orange")
    left.xaxis.set_major_locator(MaxNLocator(integer=True))
    figure.savefig(path, dpi=150)
    plt.close(figure)


def train(epochs: int, batch_size: int, learning_rate: float, output: Path) -> None:
    """Train, evaluate after each epoch, and write the weights and a picture of the learning curve."""
    # (1) Which device is mine, and how many processes are we? However this script was started, it finds out here.
    accelerator = Accelerator()
    set_seed(0)

    train_loader, held_out_loader = load_data(batch_size)
    model = build_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate)
    # (2) Model and data go to the device, every process gets its share of the data, gradients are averaged.
    model, optimizer, train_loader, held_out_loader = accelerator.prepare(
        model, optimizer, train_loader, held_out_loader
    )

    losses, accuracies = [], []
    columns = [TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()]
    with Progress(*columns, disable=not accelerator.is_main_process) as progress:
        bar = progress.add_task("training", total=epochs * len(train_loader))
        for epoch in range(1, epochs + 1):
            summed = torch.zeros((), device=accelerator.device)
            for images, labels in train_loader:  # (3) no `.to(device)`: the batch is there already
                loss = nn.functional.cross_entropy(model(images), labels)
                accelerator.backward(loss)  # (4) instead of loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                summed += loss.detach()
                progress.advance(bar)

            losses.append(accelerator.reduce(summed / len(train_loader), reduction="mean").item())
            right, total = evaluate(accelerator, model, held_out_loader)
            accuracies.append(right / total)
            progress.update(bar, description=f"epoch {epoch:2d}  loss {losses[-1]:.3f}  accuracy {accuracies[-1]:.1%}")

    accelerator.save_model(model, output)
    if accelerator.is_main_process:
        draw_curve(losses, accuracies, output / "learning_curve.png")
    accelerator.print(f"Trained by {accelerator.num_processes} process(es) on {accelerator.device.type}.")
    accelerator.print(f"Held-out accuracy {right / total:.2%}: {right} of {total} images, each counted once.")
    accelerator.print(f"Weights         {output / 'model.safetensors'}")
    accelerator.print(f"Learning curve  {output / 'learning_curve.png'}")
    accelerator.end_training()


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description="Train a small network on 1,797 handwritten digits.")
    parser.add_argument("--epochs", type=int, default=12, help="passes over the training images (default: %(default)s)")
    parser.add_argument(
        "--batch_size", type=int, default=32, help="images a process takes at once (default: %(default)s)"
    )
    parser.add_argument("--learning_rate", type=float, default=2e-3, help="(default: %(default)s)")
    parser.add_argument(
        "--output", type=Path, default=Path("outputs/digits"), help="folder to write (default: %(default)s)"
    )
    args = parser.parse_args()
    train(args.epochs, args.batch_size, args.learning_rate, args.output)


if __name__ == "__main__":
    main()
