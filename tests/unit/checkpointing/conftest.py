"""A small run to save and to restore."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from accelerate import Accelerator
from accelerate.state import AcceleratorState, GradientState
from accelerate.utils import ProjectConfiguration


class Counter:
    """An object to register for checkpointing."""

    def __init__(self, count: Any = 0) -> None:
        self.count = count

    def state_dict(self) -> dict[str, Any]:
        return {"count": self.count}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.count = state["count"]


def build(
    project: Any = None,
    *,
    width: int = 3,
    models: int = 1,
    optimizers: int = 1,
    schedulers: int = 1,
    loaders: int = 1,
    counters: int = 1,
    limit: int | None = None,
    precision: str = "no",
    trained: bool = True,
) -> SimpleNamespace:
    """Return a run of its own: an Accelerator, what it has prepared, and what is registered."""
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()
    config = ProjectConfiguration(
        project_dir=project, automatic_checkpoint_naming=project is not None, total_limit=limit
    )
    accelerator = Accelerator(cpu=True, mixed_precision=precision, project_config=config)
    run = SimpleNamespace(accelerator=accelerator)
    run.models = [torch.nn.Linear(width, 2) for _ in range(models)]
    plain = [torch.optim.AdamW(run.models[0].parameters(), lr=0.1) for _ in range(optimizers)]
    moving = [torch.optim.lr_scheduler.StepLR(plain[0], 1) for _ in range(schedulers)]
    reading = [DataLoader(TensorDataset(torch.randn(8, width)), batch_size=2) for _ in range(loaders)]
    everything = [*run.models, *plain, *moving, *reading]
    if everything:
        prepared = accelerator.prepare(*everything)
        prepared = list(prepared) if isinstance(prepared, tuple) else [prepared]
        run.models, prepared = prepared[:models], prepared[models:]
        run.optimizers, prepared = prepared[:optimizers], prepared[optimizers:]
        run.schedulers, run.loaders = prepared[:schedulers], prepared[schedulers:]
    run.counters = [Counter(number + 1) for number in range(counters)]
    accelerator.register_for_checkpointing(*run.counters)
    if trained and optimizers:
        accelerator.backward(run.models[0](torch.randn(2, width)).sum())
        for optimizer in run.optimizers:
            optimizer.step()
            optimizer.zero_grad()
    return run


@pytest.fixture(name="build")
def _build() -> Callable[..., SimpleNamespace]:
    return build
