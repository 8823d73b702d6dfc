"""Decisions of the launchers of functions: what is refused before anything starts, and what would be started."""

from __future__ import annotations

import os
import sys
import types

import pytest
import torch

from accelerate.launchers import functions, notebook, prepared
from accelerate.launchers.functions import notebook_launcher
from accelerate.launchers.plan import LaunchPlan
from accelerate.launchers.prepared import PrepareForLaunch


@pytest.fixture
def started(monkeypatch):
    """Carry out no plan, but keep it."""
    calls = []
    monkeypatch.setattr(functions, "run_plan", lambda plan, function, args, **settings: calls.append((plan, settings)))
    return calls


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"num_processes": None}, r"without num_processes(.|\n)*pass num_processes=2"),
        ({"num_processes": 2, "mixed_precision": "fp6"}, r"mixed_precision='fp6'(.|\n)*no, fp8, fp16, bf16"),
        ({"num_processes": 2, "node_rank": 2, "num_nodes": 2}, r"node_rank=2 of 2 machines(.|\n)*0 to 1"),
    ],
)
def test_what_makes_no_sense_is_refused(started, wrong, said):
    with pytest.raises(ValueError, match=said):
        notebook_launcher(print, **wrong)
    assert started == []


def test_one_process_is_this_one(capsys):
    seen = []
    notebook_launcher(lambda value: seen.append((value, os.environ["ACCELERATE_MIXED_PRECISION"])), (7,), 1, "bf16")
    assert seen == [(7, "bf16")]
    assert "ACCELERATE_MIXED_PRECISION" not in os.environ
    assert capsys.readouterr().out == "Starting on the CPU, in this process.\n"


@pytest.mark.parametrize("sign", ["KAGGLE_KERNEL_RUN_TYPE", "COLAB_RELEASE_TAG"])
def test_a_hosted_notebook_with_few_devices_runs_in_this_process(monkeypatch, sign):
    monkeypatch.setenv(sign, "1")
    seen = []
    notebook_launcher(seen.append, ("here",))
    assert seen == ["here"]


@pytest.fixture
def tpu(monkeypatch):
    """Have a hosted notebook with a TPU of four cores, whose library calls in this process."""
    monkeypatch.setenv("COLAB_RELEASE_TAG", "1")
    monkeypatch.setenv("TPU_NAME", "mine")
    monkeypatch.setattr(prepared, "compute_on_one_thread", lambda: None)
    calls = []

    def launch(function, args, start_method, debug_single_process):
        calls.append((start_method, debug_single_process, os.environ["ACCELERATE_MIXED_PRECISION"]))
        runtime.world_size = lambda: 1 if debug_single_process else 4
        for index in range(runtime.world_size()):
            function(index, *args)

    xla, runtime = types.ModuleType("torch_xla"), types.ModuleType("torch_xla.runtime")
    xla.__spec__ = types.SimpleNamespace(name="torch_xla")
    xla.launch, xla.runtime = launch, runtime
    monkeypatch.setitem(sys.modules, "torch_xla", xla)
    monkeypatch.setitem(sys.modules, "torch_xla.runtime", runtime)
    return calls


@pytest.mark.parametrize(
    ("number", "expected", "alone"), [(None, ["there"] * 4, False), (4, ["there"] * 4, False), (1, ["there"], True)]
)
def test_a_hosted_notebook_on_a_tpu_starts_through_its_library(tpu, number, expected, alone):
    seen = []
    notebook_launcher(seen.append, ("there",), num_processes=number, mixed_precision="bf16")
    assert seen == expected
    assert tpu == [("fork", alone, "bf16")]


def test_a_tpu_has_as_many_processes_as_cores(tpu):
    with pytest.raises(ValueError, match=r"8 processes on a TPU that gives 4(.|\n)*leave the number out"):
        notebook_launcher(print, ("there",), num_processes=8)


def test_a_notebook_on_a_tpu_that_has_built_an_accelerator_is_refused(tpu):
    from accelerate import Accelerator

    Accelerator(cpu=True)
    with pytest.raises(ValueError, match="has built an Accelerator"):
        notebook_launcher(print)
    assert tpu == []


def test_the_plan_of_several_processes(started):
    def train():
        pass

    notebook_launcher(train, num_processes=3, mixed_precision="fp16", use_port="0", max_restarts=2)
    ((plan, settings),) = started
    assert isinstance(plan, LaunchPlan)
    assert (plan.launcher, plan.script, plan.num_processes, plan.processes_here) == ("notebook", "train", 3, 3)
    assert plan.port > 0
    assert plan.env == {"ACCELERATE_MIXED_PRECISION": "fp16", "FORK_LAUNCHED": "1", "OMP_NUM_THREADS": "1"}
    assert settings == {
        "start_method": "fork",
        "rdzv_backend": "static",
        "rdzv_endpoint": f"127.0.0.1:{plan.port}",
        "rdzv_configs": {"rank": 0},
        "run_id": "none",
        "max_restarts": 2,
        "monitor_interval": 0.1,
    }


def test_several_machines_meet_where_they_are_told(started):
    notebook_launcher(
        print, (), 2, "no", "29600", "10.0.0.1", 1, 2, rdzv_backend="c10d", rdzv_endpoint="10.0.0.2:7",
        rdzv_conf={"is_host": 0}, log_line_prefix_template="[${rank}]: ",
    )  # fmt: skip
    ((plan, settings),) = started
    assert (plan.num_processes, plan.num_machines, plan.machine_rank, plan.port) == (4, 2, 1, 29600)
    assert (settings["rdzv_endpoint"], settings["rdzv_configs"]) == ("10.0.0.2:7", {"is_host": 0})
    assert settings["log_line_prefix_template"] == "[${rank}]: "


def test_a_port_that_is_taken_is_replaced_on_one_machine_only(monkeypatch):
    monkeypatch.setattr(functions, "is_port_in_use", lambda port: True)
    assert functions._port(29500, machines=1) != 29500
    assert functions._port(29500, machines=2) == 29500


@pytest.mark.parametrize(
    ("kind", "hip", "expected"),
    [("cuda", None, False), ("cuda", "6.0", True), ("xpu", None, True), ("npu", None, False)],
)
def test_devices_that_forked_processes_cannot_use_are_spawned(monkeypatch, kind, hip, expected):
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: types.SimpleNamespace(type=kind))
    monkeypatch.setattr(torch.version, "hip", hip)
    assert notebook.must_spawn() is expected


def test_a_notebook_with_an_accelerator_object_is_refused(started):
    from accelerate import Accelerator

    Accelerator(cpu=True)
    with pytest.raises(ValueError, match=r"has built an Accelerator(.|\n)*restart the kernel"):
        notebook_launcher(print, num_processes=2)
    assert started == []


def test_a_notebook_that_has_used_a_gpu_is_refused(monkeypatch, started):
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(notebook, "devices", lambda: 2)
    monkeypatch.setitem(sys.modules, "bitsandbytes", types.ModuleType("bitsandbytes"))
    with pytest.raises(ValueError, match=r"has used bitsandbytes and CUDA(.|\n)*restart the kernel"):
        notebook_launcher(print, num_processes=2)
    monkeypatch.setattr(notebook, "must_spawn", lambda: True)
    notebook_launcher(print, num_processes=2)
    assert started[0][1]["start_method"] == "spawn"
    assert "FORK_LAUNCHED" not in started[0][0].env


@pytest.mark.parametrize(
    ("kind", "debug", "expected"),
    [
        ("NO", False, (None, None)),
        ("NO", True, ("1", "5")),
        ("MULTI_GPU", False, ("1", "5")),
        ("XLA", False, (None, None)),
    ],
)
def test_ranks_of_a_started_process(monkeypatch, kind, debug, expected):
    monkeypatch.setenv("NPROC", "4")
    monkeypatch.setenv("NODE_RANK", "1")
    monkeypatch.setattr(prepared, "compute_on_one_thread", lambda: None)
    seen = []
    start = PrepareForLaunch(lambda: seen.append((os.environ.get("LOCAL_RANK"), os.environ.get("RANK"))), kind, debug)
    start(1)
    assert seen == [expected]
    assert (start.distributed_type, start.debug) == (kind, debug)
