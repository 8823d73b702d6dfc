"""Plugins that travel as keyword arguments: what they hand on, and to whom."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field, replace
from datetime import timedelta

import pytest
import torch

from accelerate.base.environ import reading
from accelerate.config.autocast import AutocastKwargs
from accelerate.config.data_loader import DataLoaderConfiguration
from accelerate.config.ddp import DistributedDataParallelKwargs
from accelerate.config.enums import DDPCommunicationHookType
from accelerate.config.env import fill
from accelerate.config.gradient_accumulation import GradientAccumulationPlugin
from accelerate.config.kwargs import KwargsHandler
from accelerate.config.option import Integer, option
from accelerate.config.process_group import InitProcessGroupKwargs
from accelerate.config.profile import ProfileKwargs
from accelerate.config.project import ProjectConfiguration
from accelerate.config.scaler import GradScalerKwargs

HANDED_ON = [
    (AutocastKwargs(), {}),
    (AutocastKwargs(enabled=False, cache_enabled=True), {"enabled": False, "cache_enabled": True}),
    (GradScalerKwargs(), {}),
    (GradScalerKwargs(init_scale=2.0, growth_interval=2000), {"init_scale": 2.0}),
    (InitProcessGroupKwargs(), {}),
    (InitProcessGroupKwargs(timeout=timedelta(seconds=5)), {"timeout": timedelta(seconds=5)}),
    (InitProcessGroupKwargs(timeout=timedelta(minutes=10)), {}),
    (InitProcessGroupKwargs("gloo"), {"backend": "gloo", "timeout": timedelta(minutes=30)}),
    (InitProcessGroupKwargs(None), {"backend": None, "timeout": timedelta(minutes=30)}),
    (InitProcessGroupKwargs(init_method="file:///x"), {"init_method": "file:///x"}),
    (DistributedDataParallelKwargs(), {}),
    (DistributedDataParallelKwargs(find_unused_parameters=True, comm_hook="fp16"), {"find_unused_parameters": True}),
    (DistributedDataParallelKwargs(comm_state_option={"matrix_approximation_rank": 2}), {}),
    (GradientAccumulationPlugin(), {}),
    (GradientAccumulationPlugin(num_steps=4, adjust_scheduler=False), {"num_steps": 4, "adjust_scheduler": False}),
    (
        GradientAccumulationPlugin(4, True, False, True, True),
        {
            "num_steps": 4,
            "sync_with_dataloader": False,
            "sync_each_batch": True,
            "scale_short_window": True,
        },
    ),
    (ProfileKwargs(), {}),
    (ProfileKwargs(activities=["cpu"], record_shapes=True), {"activities": ["cpu"], "record_shapes": True}),
]


@pytest.mark.parametrize(("handler", "kwargs"), HANDED_ON)
def test_only_what_differs_from_the_defaults_is_handed_on(handler, kwargs):
    assert handler.to_kwargs() == kwargs


@dataclass
class FromVariables(KwargsHandler):
    """A plugin that variables may fill."""

    steps: int = option(None, fallback=1, kind=Integer(), env="FROM_VARIABLES", help="")
    names: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        fill(self)


def test_the_defaults_are_those_of_an_empty_environment():
    with reading({"FROM_VARIABLES": "4"}):
        assert FromVariables().to_kwargs() == {"steps": 4}
        assert FromVariables(steps=1).to_kwargs() == {}


def test_a_dictionary_is_a_copy():
    handler = FromVariables(names=["a"])
    handler.to_dict()["names"].append("b")
    assert handler == FromVariables(names=["a"])
    assert handler.to_dict() == {"steps": 1, "names": ["a"]}


def test_torch_takes_what_is_handed_on():
    handler = GradScalerKwargs(init_scale=4.0, enabled=False)
    assert torch.amp.GradScaler("cpu", **handler.to_kwargs()).is_enabled() is False
    with torch.autocast("cpu", dtype=torch.bfloat16, **AutocastKwargs(enabled=False).to_kwargs()):
        assert not torch.is_autocast_enabled("cpu")


# --- DistributedDataParallel ---


class Model:
    """Stands for a DistributedDataParallel model that is given a hook."""

    def __init__(self) -> None:
        self.hooks: list[tuple[object, object]] = []

    def register_comm_hook(self, state, hook):
        self.hooks.append((state, hook))


def registered(**kwargs):
    """Return the state and the hook that a handler gives a model."""
    model = Model()
    DistributedDataParallelKwargs(**kwargs).register_comm_hook(model)
    assert len(model.hooks) == 1
    return model.hooks[0]


@pytest.mark.parametrize("hook", ["fp16", "BF16", DDPCommunicationHookType.FP16])
def test_hooks_may_be_named_by_member_or_value(hook):
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

    expected = default_hooks.fp16_compress_hook if "16" in str(hook) and str(hook)[0] == "f" else None
    assert registered(comm_hook=hook) == (None, expected or default_hooks.bf16_compress_hook)


@pytest.mark.parametrize(
    ("hook", "name"), [("power_sgd", "powerSGD_hook"), ("batched_power_sgd", "batched_powerSGD_hook")]
)
def test_power_sgd_has_a_state(hook, name):
    from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook

    state, function = registered(comm_hook=hook, comm_state_option={"matrix_approximation_rank": 3})
    assert function is getattr(powerSGD_hook, name)
    assert isinstance(state, powerSGD_hook.PowerSGDState)
    assert state.matrix_approximation_rank == 3


@pytest.mark.parametrize("wrapper", ["fp16", "bf16"])
def test_a_wrapper_goes_around_the_hook(wrapper):
    _, function = registered(comm_hook="power_sgd", comm_wrapper=wrapper)
    assert function.__qualname__.startswith(f"{wrapper}_compress_wrapper.")


@pytest.mark.parametrize("kwargs", [{}, {"comm_hook": "no"}])
def test_no_hook_is_registered_unless_asked_for(kwargs):
    model = Model()
    DistributedDataParallelKwargs(**kwargs).register_comm_hook(model)
    assert model.hooks == []


@pytest.mark.parametrize(
    ("kwargs", "given"),
    [
        ({"comm_hook": "fp17"}, "comm_hook = 'fp17'"),
        ({"comm_wrapper": "power_sgd"}, "comm_wrapper = 'power_sgd'"),
        ({"comm_wrapper": "fp16"}, "comm_wrapper='fp16' without a comm_hook"),
        ({"comm_state_option": {"a": 1}, "comm_hook": "fp16"}, "comm_state_option={'a': 1} with comm_hook='fp16'"),
    ],
)
def test_hooks_that_would_be_ignored_are_refused(kwargs, given):
    with pytest.raises(ValueError) as caught:
        DistributedDataParallelKwargs(**kwargs)
    lines = str(caught.value).splitlines()
    assert lines[0] == f"Given: {given}"
    assert [line.split(": ")[0] for line in lines] == ["Given", "Why not", "Allowed", "What to do"]


def test_the_constructor_of_ddp_knows_every_argument_that_is_handed_on():
    import inspect

    known = inspect.signature(torch.nn.parallel.DistributedDataParallel.__init__).parameters
    assert set(DistributedDataParallelKwargs().to_dict()) <= set(known)
    assert set(DistributedDataParallelKwargs().to_dict(ignore_keys=())) - set(known) == {
        "comm_hook",
        "comm_wrapper",
        "comm_state_option",
    }


# --- the profiler ---


def test_a_profiler_is_built_from_every_setting():
    profiler = ProfileKwargs(
        activities=["cpu"],
        schedule_option={"wait": 1, "warmup": 1, "active": 1, "repeat": 1},
        on_trace_ready=print,
        record_shapes=True,
        profile_memory=True,
        with_flops=True,
        with_modules=True,
    ).build()
    assert profiler.activities == {torch.profiler.ProfilerActivity.CPU}
    assert [profiler.schedule(step).name for step in range(4)] == ["NONE", "WARMUP", "RECORD_AND_SAVE", "NONE"]
    assert profiler.on_trace_ready is print
    facts = (profiler.record_shapes, profiler.profile_memory, profiler.with_stack, profiler.with_flops)
    assert (*facts, profiler.with_modules) == (True, True, False, True, True)


def test_a_profiler_watches_all_there_is_by_default():
    assert torch.profiler.ProfilerActivity.CPU in ProfileKwargs().build().activities


@pytest.mark.parametrize("activity", ["cup", "tpu"])
def test_an_activity_that_torch_does_not_know_is_refused(activity):
    with pytest.raises(ValueError, match="records no activity of that name") as caught:
        ProfileKwargs(activities=[activity]).build()
    lines = str(caught.value).splitlines()
    assert lines[0] == f"Given: profiler activity {activity!r}"
    assert lines[2].startswith("Allowed: cpu, ")


# --- those that are no keyword arguments ---


@pytest.mark.parametrize(
    ("arguments", "folder", "directories"),
    [
        ({}, None, (None, None)),
        ({"project_dir": "a"}, None, ("a", "a")),
        ({"logging_dir": "b"}, None, (None, "b")),
        ({"project_dir": "a", "logging_dir": "b"}, None, ("a", "b")),
        ({}, "c", ("c", "c")),
        ({"project_dir": "a"}, "c", ("c", "a")),
        ({"logging_dir": "b"}, "c", ("c", "b")),
    ],
)
def test_directories_of_a_project(arguments, folder, directories):
    project = ProjectConfiguration(**arguments)
    if folder is not None:
        project.set_directories(folder)
    assert (project.project_dir, project.logging_dir) == directories


@pytest.mark.parametrize(
    ("argument", "variable", "blocks"),
    [(None, None, True), (None, "0", False), (None, "true", True), (False, "1", False), (True, "0", True)],
)
def test_saves_block_as_the_argument_says_or_else_the_environment(monkeypatch, argument, variable, blocks):
    if variable is not None:
        monkeypatch.setenv("ACCELERATE_BLOCKING_SAVE", variable)
    assert ProjectConfiguration(blocking_save=argument).blocking_save is blocks


def test_configurations_are_plain_and_can_be_replaced():
    config = DataLoaderConfiguration(split_batches=True)
    assert replace(config, even_batches=False) == DataLoaderConfiguration(split_batches=True, even_batches=False)
    assert copy.deepcopy(config) == config
