"""Prepared schedulers. The sequences for the default unit are those of Accelerate 1.15."""

from __future__ import annotations

import pytest
import torch
from torch.optim import lr_scheduler

from accelerate.config.gradient_accumulation import GradientAccumulationPlugin
from accelerate.scheduler import AcceleratedScheduler, describe_unit, takes_metric
from accelerate.state.gradient import GradientState


class Optimizer(torch.optim.SGD):
    """An optimizer of one weight that says, as a prepared one does, whether its update was skipped."""

    step_was_skipped = False

    def __init__(self) -> None:
        parameter = torch.nn.Parameter(torch.ones(1))
        parameter.grad = torch.zeros(1)
        super().__init__([parameter], lr=1.0)


SCHEDULES = {
    "lambda": lambda optimizer: lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step)),
    "onecycle": lambda optimizer: lr_scheduler.OneCycleLR(optimizer, max_lr=1.0, total_steps=6),
    "plateau": lambda optimizer: lr_scheduler.ReduceLROnPlateau(optimizer, patience=2, factor=0.1),
}


def rates(schedule: str, calls: int, *, steps: int = 1, metric=(), skipped=(), **settings) -> list[float]:
    """Return the learning rate after each of `calls` micro-batches, of which every `steps`-th updates."""
    optimizer = Optimizer()
    scheduler = AcceleratedScheduler(SCHEDULES[schedule](optimizer), optimizer, **settings)
    seen = []
    for call in range(1, calls + 1):
        scheduler.gradient_state.sync_gradients = call % steps == 0
        if scheduler.gradient_state.sync_gradients:
            optimizer.step()
            optimizer.step_was_skipped = call in skipped
        scheduler.step(*metric)
        seen.append(round(optimizer.param_groups[0]["lr"], 4))
    return seen


@pytest.mark.parametrize(
    ("schedule", "settings", "expected"),
    [
        ("lambda", {"num_processes": 1}, [0.5, 0.3333, 0.25, 0.2, 0.1667, 0.1429]),
        ("lambda", {"num_processes": 2}, [0.3333, 0.2, 0.1429]),
        ("lambda", {"num_processes": 1, "steps": 2}, [1.0, 0.5, 0.5, 0.3333, 0.3333, 0.25]),
        ("lambda", {"num_processes": 2, "steps": 2}, [1.0, 0.3333, 0.3333, 0.2]),
        ("lambda", {"num_processes": 2, "split_batches": True}, [0.5, 0.3333, 0.25]),
        ("lambda", {"num_processes": 2, "unit": "update"}, [0.5, 0.3333, 0.25]),
        ("onecycle", {"num_processes": 1}, [0.9944, 0.8117, 0.4626, 0.1335, 0.0, 0.1335]),
        ("onecycle", {"num_processes": 2}, [0.8117, 0.1335, 0.1335]),
        ("onecycle", {"num_processes": 2, "steps": 2}, [0.04, 0.8117, 0.8117, 0.1335]),
        ("onecycle", {"num_processes": 2, "split_batches": True}, [0.9944, 0.8117, 0.4626]),
        ("onecycle", {"num_processes": 2, "unit": "update"}, [0.9944, 0.8117, 0.4626]),
    ],
)
def test_the_learning_rate_moves_with_the_updates(schedule, settings, expected):
    assert rates(schedule, len(expected), **settings) == expected


@pytest.mark.parametrize("settings", [{"num_processes": 1}, {"num_processes": 4}])
def test_a_schedule_of_known_length_is_not_overrun(settings):
    assert rates("onecycle", 9, **settings)[-1] == 0.1335


@pytest.mark.parametrize("settings", [{"split_batches": True}, {"unit": "update"}])
def test_a_step_too_many_is_an_error_where_calls_are_steps(settings):
    with pytest.raises(ValueError, match="Tried to step"):
        rates("onecycle", 9, num_processes=2, **settings)


@pytest.mark.filterwarnings("ignore:Detected call of `lr_scheduler.step")
def test_apart_from_the_optimizer_every_call_is_a_step():
    settings = {"num_processes": 2, "steps": 2, "step_with_optimizer": False}
    assert rates("lambda", 4, **settings) == [0.5, 0.3333, 0.25, 0.2]


def test_a_skipped_update_does_not_move_the_schedule():
    assert rates("lambda", 4, num_processes=1, skipped=(2, 3)) == [0.5, 0.5, 0.5, 0.3333]


def test_one_of_several_optimizers_that_skipped_is_enough():
    optimizers = [Optimizer(), Optimizer()]
    scheduler = AcceleratedScheduler(SCHEDULES["lambda"](optimizers[0]), optimizers, num_processes=1)
    assert scheduler.optimizers is optimizers
    optimizers[1].step_was_skipped = True
    scheduler.step()
    assert scheduler.get_last_lr() == [1.0]


@pytest.mark.parametrize("unit", ["process", "update"])
@pytest.mark.parametrize("processes", [1, 2, 8])
def test_a_scheduler_with_a_metric_steps_once_with_it(processes, unit):
    optimizer = Optimizer()
    plain = lr_scheduler.ReduceLROnPlateau(optimizer, patience=2, factor=0.1)
    expected = []
    for _ in range(4):
        plain.step(1.0)
        expected.append(round(optimizer.param_groups[0]["lr"], 4))
    assert rates("plateau", 4, metric=(1.0,), num_processes=processes, unit=unit) == expected
    assert expected[-1] == 0.1


def test_a_metric_is_heard_although_the_update_before_it_was_skipped():
    assert rates("plateau", 4, metric=(1.0,), num_processes=1, skipped=(1, 2, 3, 4))[-1] == 0.1


def test_a_metric_counts_once_per_update():
    assert rates("plateau", 6, metric=(1.0,), num_processes=1, steps=2)[-1] == 1.0


def test_any_scheduler_whose_step_needs_an_argument_takes_a_metric():
    class Watchdog:
        def step(self, loss, *, verbose=False):
            pass

    assert takes_metric(Watchdog())
    assert [takes_metric(make(Optimizer())) for make in SCHEDULES.values()] == [False, False, True]


@pytest.mark.parametrize(
    ("schedule", "settings", "expected"),
    [
        ("lambda", {"num_processes": 1, "steps": 2}, [1.0, 0.3333, 0.3333, 0.2, 0.2]),
        ("lambda", {"num_processes": 2, "steps": 2}, [1.0, 0.2, 0.2, 0.1111]),
        ("lambda", {"num_processes": 2, "steps": 2, "unit": "update"}, [1.0, 0.3333, 0.3333, 0.2]),
        ("lambda", {"num_processes": 1, "steps": 2, "skipped": (2,)}, [1.0, 1.0, 1.0, 0.3333]),
        ("onecycle", {"num_processes": 1, "steps": 3}, [0.04, 0.04, 0.4626, 0.4626, 0.4626, 0.1335]),
    ],
)
def test_a_schedule_in_batches_moves_by_the_batches_of_each_update(schedule, settings, expected):
    GradientState(GradientAccumulationPlugin(num_steps=2, adjust_scheduler=False))
    assert rates(schedule, len(expected), **settings) == expected


@pytest.mark.parametrize("plugin", [{"num_steps": 2}, {"num_steps": 2, "adjust_scheduler": True}])
def test_by_default_a_schedule_is_in_updates(plugin):
    GradientState(GradientAccumulationPlugin(**plugin))
    assert rates("lambda", 4, num_processes=1, steps=2) == [1.0, 0.5, 0.5, 0.3333]


def test_the_rest_is_that_of_the_scheduler_inside():
    optimizer = Optimizer()
    scheduler = AcceleratedScheduler(SCHEDULES["lambda"](optimizer), optimizer)
    optimizer.step()
    scheduler.step()
    saved = scheduler.state_dict()
    assert (saved["last_epoch"], scheduler.get_last_lr()) == (1, [0.5])
    optimizer.step()
    scheduler.step()
    scheduler.load_state_dict(saved)
    assert scheduler.scheduler.last_epoch == 1


def test_what_the_scheduler_inside_lacks_is_its_own_error():
    optimizer = Optimizer()
    scheduler = AcceleratedScheduler(SCHEDULES["lambda"](optimizer), optimizer)
    with pytest.warns(UserWarning, match="get_last_lr"):
        assert scheduler.get_lr() == [1.0]
    with pytest.raises(AttributeError, match="print_lr"):
        scheduler.print_lr(False, 0, 1.0)


@pytest.mark.parametrize(
    ("schedule", "settings", "words"),
    [
        ("lambda", {"num_processes": 4}, "LambdaLR: 1 call = 4 schedule steps, because each of 4 processes"),
        ("lambda", {"num_processes": 1}, "LambdaLR: 1 call = 1 schedule step, because there is one process"),
        ("lambda", {"num_processes": 4, "unit": "update"}, "1 call = 1 schedule step, because it counts updates"),
        ("lambda", {"num_processes": 4, "split_batches": True}, "1 schedule step, because the processes share each"),
        ("lambda", {"num_processes": 4, "step_with_optimizer": False}, "1 schedule step, because it moves apart"),
        ("plateau", {"num_processes": 4}, "ReduceLROnPlateau: 1 call = 1 schedule step, because it is driven by a"),
    ],
)
def test_the_unit_is_described_with_its_reason(schedule, settings, words):
    optimizer = Optimizer()
    assert words in describe_unit(AcceleratedScheduler(SCHEDULES[schedule](optimizer), optimizer, **settings))


def test_an_unknown_unit_is_refused():
    with pytest.raises(ValueError, match=r"'updates'[\s\S]*Did you mean 'update'"):
        AcceleratedScheduler(SCHEDULES["lambda"](Optimizer()), [], unit="updates")
