"""One training script for every strategy, and the plain torch loop that it has to agree with.

`train` runs on the ranks of a world and returns its weights together with the global batches it saw; `reference`
trains on those batches in one process with nothing but torch.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

GLOBAL_BATCH = 8


@dataclass(frozen=True)
class Recipe:
    """What is trained, and how."""

    model: str = "plain"
    length: int = 40
    epochs: int = 2
    steps: int = 1
    clip: float | None = None
    schedule: str | None = None  #: "step", "epoch"
    weighted: bool = False  #: losses count by the number of their items
    scale_short_window: bool = False
    precision: str = "no"
    accelerator: dict[str, Any] = field(default_factory=dict)


@dataclass
class Outcome:
    """Weights after training, the samples of each micro-batch over all ranks, and the learning rate after each."""

    weights: dict[str, torch.Tensor]
    batches: list[list[int]]
    rates: list[float]


class Tied(nn.Module):
    """A model whose first and last layer are one weight."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4, bias=False)
        self.last = nn.Linear(4, 4, bias=False)
        self.last.weight = self.first.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(torch.tanh(self.first(x))).sum(-1, keepdim=True)


def build_model(name: str) -> nn.Module:
    """Return the model `name` with the same weights every time."""
    torch.manual_seed(0)
    if name == "tied":
        return Tied()
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
    if name == "frozen":
        model[0].requires_grad_(False)
    return model


def data(length: int) -> TensorDataset:
    """Return `length` samples: index, inputs [4], target [1], number of items."""
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(length, 4, generator=generator)
    return TensorDataset(torch.arange(length), inputs, inputs.sum(1, keepdim=True).sin(), torch.arange(length) % 3 + 1)


def mean_loss(model: nn.Module, recipe: Recipe, x: torch.Tensor, y: torch.Tensor, items: torch.Tensor) -> torch.Tensor:
    """Return the mean loss of one micro-batch, over samples or (weighted) over items."""
    errors = (model(x) - y).float().square().squeeze(1)
    return (errors * items).sum() / items.sum() if recipe.weighted else errors.mean()


def optimizer_for(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD([each for each in model.parameters() if each.requires_grad], lr=0.1, momentum=0.5)


def scheduler_for(optimizer: torch.optim.Optimizer) -> Any:
    return torch.optim.lr_scheduler.StepLR(optimizer, step_size=2, gamma=0.9)


def train(recipe: Recipe) -> Outcome:
    """Train with `Accelerator` on this rank."""
    from accelerate import Accelerator
    from accelerate.utils import GradientAccumulationPlugin

    plugin = GradientAccumulationPlugin(num_steps=recipe.steps, scale_short_window=recipe.scale_short_window)
    accelerator = Accelerator(
        cpu=True,
        mixed_precision=recipe.precision,
        gradient_accumulation_plugin=plugin,
        scheduler_unit="update",
        **recipe.accelerator,
    )
    model = build_model(recipe.model)
    optimizer = optimizer_for(model)
    scheduler = scheduler_for(optimizer)
    loader = DataLoader(data(recipe.length), batch_size=GLOBAL_BATCH // accelerator.num_processes)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    if recipe.schedule == "step":
        scheduler = accelerator.prepare(scheduler)
    batches, rates = [], []
    for _ in range(recipe.epochs):
        for index, x, y, items in loader:
            with accelerator.accumulate(model, num_items=items.sum() if recipe.weighted else None):
                accelerator.backward(mean_loss(model, recipe, x, y, items))
                if accelerator.sync_gradients and recipe.clip is not None:
                    accelerator.clip_grad_norm_(model.parameters(), recipe.clip)
                optimizer.step()
                if recipe.schedule == "step":
                    scheduler.step()
                optimizer.zero_grad()
            batches.append(accelerator.gather(index).tolist())
            rates.append(optimizer.param_groups[0]["lr"])
        if recipe.schedule == "epoch":
            scheduler.step()
    weights = {name: tensor.clone() for name, tensor in accelerator.get_state_dict(model).items()}
    return Outcome(weights, batches, rates)


def reference(recipe: Recipe, batches: list[list[int]]) -> Outcome:
    """Train on the given global micro-batches in one process, without this library."""
    model = build_model(recipe.model)
    optimizer = optimizer_for(model)
    scheduler = scheduler_for(optimizer)
    dataset = data(recipe.length)
    per_epoch = len(batches) // recipe.epochs
    rates = []
    for epoch in range(recipe.epochs):
        mine = batches[epoch * per_epoch : (epoch + 1) * per_epoch]
        for start in range(0, per_epoch, recipe.steps):
            window = [dataset[torch.tensor(batch)] for batch in mine[start : start + recipe.steps]]
            all_items = sum(int(items.sum()) for *_, items in window)
            divisor = len(window) if recipe.scale_short_window else recipe.steps
            for _, x, y, items in window:
                with torch.autocast("cpu", torch.bfloat16, enabled=recipe.precision == "bf16"):
                    loss = mean_loss(model, recipe, x, y, items)
                (loss * (items.sum() / all_items) if recipe.weighted else loss / divisor).backward()
            if recipe.clip is not None:
                torch.nn.utils.clip_grad_norm_(model.parameters(), recipe.clip)
            before = optimizer.param_groups[0]["lr"]
            optimizer.step()
            optimizer.zero_grad()
            if recipe.schedule == "step":
                scheduler.step()
            rates += [before] * (len(window) - 1) + [optimizer.param_groups[0]["lr"]]
        if recipe.schedule == "epoch":
            scheduler.step()
    return Outcome(dict(model.state_dict()), batches, rates)
