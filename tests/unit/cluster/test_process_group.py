"""Which backend serves a device, and joining and leaving the default group for real (gloo, one process)."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

from accelerate.base.ports import get_free_port
from accelerate.cluster import process_group
from accelerate.cluster.environments import SingleProcess, TorchElastic
from accelerate.cluster.process_group import backends_by_device, resolve_backend, start, stop

CPU = torch.device("cpu", 0)
CUDA = torch.device("cuda", 0)


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch):
    """Return a function that says which backends this build of torch has."""

    def only(*names: str) -> None:
        monkeypatch.setattr(dist, "is_backend_available", lambda name: name in names)

    only("gloo", "nccl", "xccl")
    return only


@pytest.fixture
def environ(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The variables of the only process of a run, with a port of its own."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.delenv("ACCELERATE_DEBUG_RDV_FILE", raising=False)
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    return {"LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(get_free_port())}


@pytest.fixture(autouse=True)
def no_group_left():
    """Leave no process group to the next test."""
    yield
    stop()


@pytest.mark.parametrize(
    ("requested", "device", "preferred", "with_cpu", "expected"),
    [
        (None, CPU, "gloo", False, "gloo"),
        (None, CUDA, "nccl", False, "nccl"),
        (None, torch.device("xpu", 0), "xccl", False, "xccl"),
        (None, CUDA, "nccl", True, "cuda:nccl,cpu:gloo"),
        (None, torch.device("xpu", 0), "xccl", True, "xpu:xccl,cpu:gloo"),
        (None, CPU, "gloo", True, "gloo"),
        (None, CUDA, None, False, "nccl"),  # what torch has registered
        ("gloo", CUDA, "nccl", False, "gloo"),
        ("GLOO", CPU, "gloo", False, "gloo"),
        ("cuda:nccl,cpu:gloo", CUDA, "nccl", False, "cuda:nccl,cpu:gloo"),
        ("cuda:nccl,cpu:gloo", CPU, "gloo", False, "cuda:nccl,cpu:gloo"),
        ("hccl", torch.device("hpu", 0), "hccl", False, "hccl"),
    ],
)
def test_the_backend_that_serves_the_device(
    built, requested: str | None, device: torch.device, preferred: str | None, with_cpu: bool, expected: str
) -> None:
    assert resolve_backend(requested, device=device, preferred=preferred, with_cpu=with_cpu) == expected


@pytest.mark.parametrize(
    ("requested", "device", "preferred", "words"),
    [
        ("nccl", CPU, "gloo", r"backend 'nccl' for a run on devices of type 'cpu'[\s\S]*Allowed: gloo"),
        ("cuda:nccl", CPU, "gloo", "doesn't move tensors of type 'cpu'"),
        ("ucc", CUDA, "nccl", r"'ucc'\nWhy not: this build of torch doesn't include it"),
        ("glou", CPU, "gloo", r"there is no such backend[\s\S]*Did you mean 'gloo'\?"),
        ("cuda:nccl,cpu:glou", CUDA, "nccl", "backend 'glou'"),
        (None, torch.device("privateuseone", 0), None, "no collective backend is registered"),
    ],
)
def test_a_backend_that_can_not_serve_the_device_is_refused(
    built, requested: str | None, device: torch.device, preferred: str | None, words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        resolve_backend(requested, device=device, preferred=preferred)


def test_gloo_stands_in_where_nccl_was_not_built(built) -> None:
    built("gloo")
    with pytest.warns(UserWarning, match="has no nccl backend"):
        assert resolve_backend(None, device=CUDA, preferred="nccl") == "gloo"


@pytest.mark.parametrize(
    ("under_mpi", "mpi", "expected"), [(True, True, "mpi"), (True, False, "gloo"), (False, True, "gloo")]
)
def test_mpi_is_used_where_mpirun_started_the_processes_and_torch_has_it(
    built, monkeypatch: pytest.MonkeyPatch, under_mpi: bool, mpi: bool, expected: str
) -> None:
    monkeypatch.setattr(dist, "is_mpi_available", lambda: mpi)
    assert resolve_backend(None, device=CPU, preferred="gloo", under_mpi=under_mpi) == expected


def test_combinations_are_taken_apart() -> None:
    assert backends_by_device("cuda:nccl,cpu:gloo") == {"cuda": "nccl", "cpu": "gloo"}
    assert backends_by_device("gloo")["cpu"] == "gloo"
    assert backends_by_device("unheard_of") == {}


def test_a_group_is_joined_and_left(environ: dict[str, str]) -> None:
    start(TorchElastic(environ), device=CPU, backend="gloo", timeout=timedelta(seconds=30))
    assert (dist.get_rank(), dist.get_world_size(), dist.get_backend()) == (0, 1, "gloo")
    total = torch.ones(2)
    dist.all_reduce(total)
    assert total.tolist() == [1.0, 1.0]
    assert {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1"}.items() <= os.environ.items()
    stop()
    assert not dist.is_initialized()
    stop()  # there is nothing left to leave


def test_a_group_that_exists_is_used_as_it_is(environ: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    start(TorchElastic(environ), device=CPU, backend="gloo")
    group = dist.group.WORLD
    monkeypatch.setattr(dist, "init_process_group", lambda **options: pytest.fail("formed a second time"))
    start(TorchElastic(environ), device=CPU, backend="gloo")
    assert dist.group.WORLD is group


def test_a_group_that_can_not_serve_the_device_is_told(environ: dict[str, str]) -> None:
    start(TorchElastic(environ), device=CPU, backend="gloo")
    with pytest.warns(UserWarning, match="collectives will fail"):
        start(TorchElastic(environ), device=torch.device("xpu", 0), backend="xccl")


def test_a_process_that_needs_no_group_joins_none() -> None:
    start(SingleProcess({}), device=CPU, backend="gloo")
    assert not dist.is_initialized()


def test_a_group_can_meet_in_a_file(environ: dict[str, str], tmp_path) -> None:
    start(TorchElastic(environ), device=CPU, backend="gloo", init_method=f"file://{tmp_path / 'meeting'}")
    assert dist.get_world_size() == 1
    assert (tmp_path / "meeting").exists()


def test_a_debugging_launch_meets_in_its_file(environ: dict[str, str], tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("ACCELERATE_DEBUG_RDV_FILE", str(tmp_path / "meeting"))
    start(TorchElastic(environ), device=CPU, backend="gloo")
    assert (tmp_path / "meeting").exists()


def test_a_port_in_use_is_named_with_who_uses_it(environ: dict[str, str]) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        environ["MASTER_PORT"] = str(listener.getsockname()[1])
        with pytest.raises(RuntimeError, match=rf"port {environ['MASTER_PORT']}[\s\S]*in use by") as refused:
            start(TorchElastic(environ), device=CPU, backend="gloo")
    assert "--main_process_port 0" in str(refused.value)
    assert isinstance(refused.value.__cause__, dist.DistNetworkError)


def test_processes_of_mpirun_find_each_other(tmp_path) -> None:
    script = tmp_path / "sum_of_ranks.py"
    script.write_text(
        "import torch, torch.distributed as dist\n"
        "from accelerate.cluster.environments import detect_environment\n"
        "from accelerate.cluster.process_group import resolve_backend, start, stop\n"
        "environment, device = detect_environment(), torch.device('cpu', 0)\n"
        "backend = resolve_backend(None, device=device, preferred='gloo', under_mpi=environment.speaks_mpi)\n"
        "start(environment, device=device, backend=backend)\n"
        "total = torch.tensor(environment.topology().rank + 1)\n"
        "dist.all_reduce(total)\n"
        "print(environment.title, int(total))\n"
        "stop()\n"
    )
    port = str(get_free_port())
    started = []
    for rank in range(2):
        ranks = {"PMI_RANK": str(rank), "PMI_SIZE": "2", "MPI_LOCALRANKID": str(rank), "MPI_LOCALNRANKS": "2"}
        environ = {**os.environ, **ranks, "MASTER_PORT": port, "OMP_NUM_THREADS": "1"}
        command = [sys.executable, str(script)]
        started.append(
            subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        )
    try:
        said = [process.communicate(timeout=120)[0].strip() for process in started]
    finally:
        for process in started:
            process.kill()
    assert said == ["mpirun 3", "mpirun 3"]


@pytest.mark.parametrize(
    ("device", "backend", "timeout", "init_method", "expected"),
    [
        (CPU, "gloo", None, None, {}),
        (CPU, "gloo", None, "env://", {}),
        (CPU, "gloo", timedelta(seconds=5), None, {"timeout": timedelta(seconds=5)}),
        (CUDA, "nccl", None, None, {"device_id": CUDA}),
        (CUDA, "cuda:nccl,cpu:gloo", None, None, {"device_id": CUDA}),
        (torch.device("cuda"), "nccl", None, None, {}),  # which device it is isn't known
        (CUDA, "gloo", None, None, {}),
        (CPU, "gloo", None, "file:///meet", {"init_method": "file:///meet", "rank": 1, "world_size": 2}),
        (torch.device("xla", 0), "xla", None, None, {"init_method": "xla://"}),
    ],
)
def test_what_torch_is_asked_for(
    environ: dict[str, str], monkeypatch, device: torch.device, backend: str, timeout, init_method, expected: dict
) -> None:
    asked: list[dict] = []
    monkeypatch.setattr(process_group.dist, "init_process_group", lambda **options: asked.append(options))
    environ.update(RANK="1", LOCAL_RANK="1", WORLD_SIZE="2")
    start(TorchElastic(environ), device=device, backend=backend, timeout=timeout, init_method=init_method)
    assert asked == [{"backend": backend, **expected}]


@pytest.mark.parametrize(("crashed", "left"), [(False, True), (True, False)])
def test_a_group_is_left_at_exit_unless_the_script_crashed(monkeypatch, crashed, left):
    calls = []
    monkeypatch.setattr(process_group, "stop", lambda: calls.append("stop"))
    monkeypatch.setattr(sys, "last_value", ValueError() if crashed else None, raising=False)
    process_group._leave_at_exit()
    assert bool(calls) is left
