from __future__ import annotations

import pytest
import torch

from accelerate import Accelerator
from accelerate.optimizer import AcceleratedOptimizer
from accelerate.scheduler import AcceleratedScheduler
from accelerate.utils import DeepSpeedOptimizerWrapper, DeepSpeedSchedulerWrapper, DummyOptim, DummyScheduler


def test_what_is_to_be_built_is_kept():
    optimizer = DummyOptim([torch.zeros(1)], lr=0.1, betas=(0.9, 0.95))
    assert (optimizer.lr, optimizer.weight_decay, optimizer.kwargs) == (0.1, 0, {"betas": (0.9, 0.95)})
    scheduler = DummyScheduler(optimizer, total_num_steps=10, warmup_num_steps=2, lr_scheduler_callable=len, power=2)
    assert scheduler.optimizer is optimizer
    assert (scheduler.total_num_steps, scheduler.warmup_num_steps, scheduler.kwargs) == (10, 2, {"power": 2})
    assert scheduler.lr_scheduler_callable is len


@pytest.fixture
def updated():
    """An optimizer and a scheduler of an engine, and the weight they are about, with a gradient."""
    Accelerator(cpu=True)
    weight = torch.nn.Parameter(torch.ones(1))
    weight.grad = torch.ones(1)
    optimizer = torch.optim.SGD([weight], lr=1.0)
    return weight, optimizer, torch.optim.lr_scheduler.StepLR(optimizer, 1)


def test_the_lines_of_a_script_leave_the_update_to_the_engine(updated):
    weight, inner, schedule = updated
    optimizer = DeepSpeedOptimizerWrapper(inner)
    scheduler = DeepSpeedSchedulerWrapper(schedule, optimizer)
    optimizer.step()
    scheduler.step()
    optimizer.zero_grad(set_to_none=True)
    assert weight.item() == 1
    assert weight.grad is not None
    assert scheduler.get_last_lr() == [1.0]
    assert isinstance(optimizer, AcceleratedOptimizer)
    assert isinstance(scheduler, AcceleratedScheduler)


def test_an_update_is_skipped_when_the_engine_says_so(updated):
    _, inner, _ = updated
    optimizer = DeepSpeedOptimizerWrapper(inner)
    assert not optimizer.step_was_skipped
    inner.overflow = True
    assert optimizer.step_was_skipped
