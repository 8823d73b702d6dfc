"""A run that is interrupted anywhere and resumed goes on exactly as if it had not been: the same losses, bit for bit.

One run saves after chosen micro-batches and goes on to its end. For each of these checkpoints another run starts with
other seeds and other weights, resumes, and has to see the same losses from there on and end with the same weights.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

from accelerate.utils import GradientAccumulationPlugin

from .conftest import world_of
from .recipes import data

EVERYWHERE = tuple(range(100))


@dataclass(frozen=True)
class Plan:
    """What is trained, and after which micro-batches (counted from the first) it is saved."""

    saves: tuple[int, ...] = EVERYWHERE
    length: int = 14
    epochs: int = 2
    batch: int = 2  #: per process
    steps: int = 1
    precision: str = "no"
    workers: int = 0
    sampler: str = "shuffled"  #: "shuffled", "seedable", "generator", "in order"
    weighted: bool = False
    options: dict[str, Any] = field(default_factory=dict)
    saving: dict[str, Any] = field(default_factory=dict)


class Net(nn.Module):
    """Dropout draws random numbers, batch norm keeps buffers."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Dropout(0.3), nn.Linear(8, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)


def build(plan: Plan, folder: str, seed: int):
    """Return an Accelerator and what it has prepared, the same objects whatever the seed."""
    from accelerate import Accelerator, DataLoaderConfiguration
    from accelerate.utils import ProjectConfiguration, set_seed

    accelerator = Accelerator(
        cpu=True,
        mixed_precision=plan.precision,
        gradient_accumulation_steps=plan.steps,
        dataloader_config=DataLoaderConfiguration(use_seedable_sampler=plan.sampler == "seedable"),
        project_config=ProjectConfiguration(project_dir=folder, automatic_checkpoint_naming=True),
        **plan.options,
    )
    set_seed(seed, device_specific=True)
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=20)
    generator = torch.Generator().manual_seed(seed) if plan.sampler == "generator" else None
    loader = DataLoader(
        data(plan.length),
        batch_size=plan.batch,
        shuffle=plan.sampler != "in order",
        num_workers=plan.workers,
        multiprocessing_context="fork" if plan.workers else None,
        generator=generator,
    )
    validation = DataLoader(data(6), batch_size=2)
    return accelerator, *accelerator.prepare(model, optimizer, scheduler, loader, validation)


def journey(plan: Plan, folder: str, seed: int, resume: str | None = None):
    """Train to the end, from the start or from a checkpoint; return the losses of this rank and the weights."""
    accelerator, model, optimizer, scheduler, loader, validation = build(plan, folder, seed)
    done = 0
    if resume is not None:
        accelerator.load_state(resume)
        done = int(resume.rpartition("_")[2]) + 1
    losses = []
    for _ in range(loader.iteration, plan.epochs):
        for index, x, y, items in loader:
            weight = items.sum() if plan.weighted else None
            with accelerator.accumulate(model, num_items=weight):
                loss = (model(x) - y).float().square().mean()
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
            losses.append((index.tolist(), loss.item(), optimizer.param_groups[0]["lr"]))
            if resume is None and done in plan.saves:
                accelerator.project_configuration.iteration = done
                accelerator.save_state(**plan.saving)
            done += 1
        validate(model, validation)
    accelerator.wait_for_checkpoint()
    weights = accelerator.unwrap_model(model).state_dict()
    return losses, {name: value.clone() for name, value in weights.items()}


def validate(model: nn.Module, loader: Any) -> None:
    """Look at some held-out data and stop early, as scripts do."""
    model.eval()
    with torch.no_grad():
        for _, x, _, _ in loader:
            model(x)
            break
    model.train()


PLANS = {
    "plain": Plan(),
    "bf16": Plan(precision="bf16"),
    "accumulation": Plan(steps=3),
    "accumulation, bf16": Plan(steps=3, precision="bf16"),
    "accumulation, weighted": Plan(steps=3, weighted=True),
    "accumulation, schedules by the batch": Plan(
        options={"gradient_accumulation_plugin": GradientAccumulationPlugin(num_steps=3, adjust_scheduler=False)}
    ),
    "workers": Plan(workers=2, saves=(1, 5, 9)),
    "workers, accumulation": Plan(workers=1, steps=2, saves=(2, 7)),
    "seedable sampler": Plan(sampler="seedable"),
    "generator": Plan(sampler="generator"),
    "generator, workers": Plan(sampler="generator", workers=1, saves=(3,)),
    "in order": Plan(sampler="in order"),
    "in the background": Plan(steps=2, saves=(0, 3, 4, 8), saving={"blocking": False}),
    "pickled weights": Plan(saves=(4,), saving={"safe_serialization": False}),
}


@pytest.mark.parametrize("size", [1, 2], ids="processes={}".format)
@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS.keys())
def test_a_resumed_run_is_the_uninterrupted_one(size, plan, tmp_path):
    world = world_of(size)
    whole = world.run(journey, plan, str(tmp_path), seed=1)
    checkpoints = sorted((tmp_path / "checkpoints").iterdir(), key=lambda path: int(path.name.rpartition("_")[2]))
    assert checkpoints
    for checkpoint in checkpoints:
        done = int(checkpoint.name.rpartition("_")[2]) + 1
        resumed = world.run(journey, plan, str(tmp_path), seed=99, resume=str(checkpoint))
        for (losses, weights), (all_losses, all_weights) in zip(resumed, whole, strict=True):
            assert losses == all_losses[done:], checkpoint.name
            assert all(torch.equal(weights[name], all_weights[name]) for name in all_weights), checkpoint.name


@pytest.mark.parametrize("size", [1, 2], ids="processes={}".format)
def test_saving_changes_nothing(size, tmp_path):
    world = world_of(size)
    saved = world.run(journey, Plan(steps=2), str(tmp_path / "a"), seed=1)
    unsaved = world.run(journey, Plan(steps=2, saves=()), str(tmp_path / "b"), seed=1)
    for (losses, weights), (all_losses, all_weights) in zip(saved, unsaved, strict=True):
        assert losses == all_losses
        assert all(torch.equal(weights[name], all_weights[name]) for name in all_weights)
