"""Runs on Ray: with a stand-in for its API, and on a real local cluster where Ray is installed."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import types

import pytest

from accelerate.launchers.ray import RayLauncher, Worker, ranks
from tests.launch.conftest import end
from tests.launch.plans import CPU, FOUR_GPUS, SCRIPT, plan_of


class Actor:
    """A worker whose methods run at once; every second place is on another machine."""

    def __init__(self, cluster: Cluster, index: int) -> None:
        self.where = types.SimpleNamespace(remote=lambda: (f"10.0.0.{1 + (index + 1) % 2}", 4000 + index))
        self.work = types.SimpleNamespace(remote=lambda argv, env, folder: cluster.start(argv, env))


class Cluster(types.ModuleType):
    """As much of the package as the launcher calls."""

    def __init__(self, codes: dict[str, int] | None = None, full: bool = False) -> None:
        super().__init__("ray")
        self.codes, self.full, self.started, self.calls = codes or {}, full, [], []
        strategies = types.SimpleNamespace(PlacementGroupSchedulingStrategy=lambda group, **facts: facts)
        self.util = types.SimpleNamespace(
            placement_group=self.placement_group,
            remove_placement_group=lambda group: self.calls.append("removed"),
            scheduling_strategies=strategies,
        )

    def is_initialized(self):
        return False

    def init(self, **settings):
        self.calls.append("init")

    def shutdown(self):
        self.calls.append("shutdown")

    def placement_group(self, bundles, strategy):
        self.calls.append((bundles, strategy))
        return types.SimpleNamespace(ready=lambda: "ready")

    def cluster_resources(self):
        return {"CPU": 2.0}

    def remote(self, **resources):
        self.calls.append(resources)

        def options(scheduling_strategy):
            index = scheduling_strategy["placement_group_bundle_index"]
            return types.SimpleNamespace(remote=lambda: Actor(self, index))

        return lambda cls: types.SimpleNamespace(options=options)

    def start(self, argv, env):
        self.started.append((argv, env))
        return ("code", env["RANK"])

    def wait(self, waited, num_returns=1, timeout=None):
        if waited == ["ready"]:
            return ([], waited) if self.full else (waited, [])
        return waited[:1], waited[1:]

    def get(self, asked):
        return self.codes.get(asked[1], 0) if isinstance(asked, tuple) and asked[0] == "code" else asked


def test_ranks_are_given_machine_by_machine(monkeypatch):
    cluster = Cluster()
    monkeypatch.setitem(sys.modules, "ray", cluster)
    plan = plan_of("--launcher ray --num_processes 4 SCRIPT --lr 1", hardware=FOUR_GPUS)
    assert (plan.launcher, plan.argv) == ("ray", (sys.executable, SCRIPT, "--lr", "1"))
    assert RayLauncher().run(plan) == 0
    places = [(env["RANK"], env["LOCAL_RANK"], env["GROUP_RANK"]) for _, env in cluster.started]
    assert places == [("0", "0", "0"), ("1", "1", "0"), ("2", "0", "1"), ("3", "1", "1")]
    assert {(env["MASTER_ADDR"], env["MASTER_PORT"]) for _, env in cluster.started} == {("10.0.0.1", "4001")}
    assert cluster.calls == [
        "init", ([{"CPU": 1, "GPU": 1}] * 4, "PACK"), {"num_cpus": 1, "num_gpus": 1}, "removed", "shutdown",
    ]  # fmt: skip


def test_the_cpu_and_a_port(monkeypatch):
    cluster = Cluster()
    monkeypatch.setitem(sys.modules, "ray", cluster)
    assert RayLauncher().run(plan_of("--launcher ray --cpu --num_processes 2 --main_process_port 7 SCRIPT")) == 0
    assert cluster.calls[1] == ([{"CPU": 1}] * 2, "PACK")
    assert cluster.started[0][1]["MASTER_PORT"] == "7"


def test_the_first_failure_ends_the_run(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "ray", Cluster(codes={"1": -9}))
    assert RayLauncher().run(plan_of("--launcher ray --cpu --num_processes 3 SCRIPT")) == 137
    assert "rank 1 of 3 was killed by signal 9" in capsys.readouterr().err


def test_a_cluster_that_is_too_small(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", Cluster(full=True))
    with pytest.raises(RuntimeError, match=r"3 processes on a Ray cluster with 2 CPU in all(.|\n)*ray status"):
        RayLauncher().run(plan_of("--launcher ray --cpu --num_processes 3 SCRIPT"))


def test_what_is_refused(monkeypatch):
    with pytest.raises(ValueError, match=r"without a number of processes(.|\n)*--num_processes 8"):
        plan_of("--launcher ray SCRIPT", hardware=CPU)
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ImportError, match=r"isn't installed(.|\n)*pip install 'accelerate.ray.'"):
        RayLauncher().run(plan_of("--launcher ray --cpu --num_processes 2 SCRIPT"))


def test_a_worker_runs_a_process_and_passes_on_what_it_writes(tmp_path, capsys):
    code = "import os, sys; print(os.environ['X'], os.getcwd()); sys.exit(3)"
    assert Worker().work([sys.executable, "-c", code], {"X": "y"}, str(tmp_path)) == 3
    assert capsys.readouterr().err == f"y {tmp_path}\n"
    assert Worker().work([sys.executable, "-c", ""], {}, str(tmp_path / "missing")) == 0


def test_ranks_of_one_machine():
    assert [(one["LOCAL_RANK"], one["LOCAL_WORLD_SIZE"], one["GROUP_WORLD_SIZE"]) for one in ranks(["a", "a"], 1)] == [
        ("0", "2", "1"),
        ("1", "2", "1"),
    ]


RANKS = """
import torch
from accelerate import Accelerator

accelerator = Accelerator(cpu=True)
accelerator.print("ranks", accelerator.gather(torch.tensor([accelerator.process_index])).tolist())
accelerator.end_training()
"""


@pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="ray isn't installed")
def test_two_processes_on_a_real_cluster(launch):
    code, _, err = end(launch(RANKS, "--launcher", "ray", "--cpu", "--num_processes", "2"))
    subprocess.run(["ray", "stop"], check=False, capture_output=True, timeout=60)
    assert code == 0, err
    assert "ranks [0, 1]" in err
