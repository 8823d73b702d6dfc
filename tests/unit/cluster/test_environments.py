"""Who started the process, as a table of what launchers leave in the environment."""

from __future__ import annotations

import os
import subprocess
import sys
import types

import pytest

from accelerate.cluster.environments import (
    ENVIRONMENTS,
    MPI,
    CPUInformation,
    ExistingGroup,
    SingleProcess,
    TorchElastic,
    XlaRuntime,
    detect_environment,
    get_cpu_distributed_information,
)
from accelerate.cluster.topology import Topology

TORCHRUN = {
    "RANK": "5",
    "WORLD_SIZE": "8",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "4",
    "GROUP_RANK": "1",
    "GROUP_WORLD_SIZE": "2",
    "MASTER_ADDR": "node0",
    "MASTER_PORT": "29512",
}
TWO_PER_NODE = {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}
OPEN_MPI = {
    "OMPI_COMM_WORLD_RANK": "3",
    "OMPI_COMM_WORLD_SIZE": "4",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
}
INTEL_MPI = {"PMI_RANK": "1", "PMI_SIZE": "2", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2"}
MVAPICH = {
    "MV2_COMM_WORLD_RANK": "1",
    "MV2_COMM_WORLD_SIZE": "2",
    "MV2_COMM_WORLD_LOCAL_RANK": "1",
    "MV2_COMM_WORLD_LOCAL_SIZE": "2",
}


@pytest.mark.parametrize(
    ("environ", "kind", "expected"),
    [
        ({}, SingleProcess, Topology()),
        (TORCHRUN, TorchElastic, Topology(5, 8, 1, 4, 1, 2)),
        ({"LOCAL_RANK": "0"}, TorchElastic, Topology()),
        ({"LOCAL_RANK": "1", "WORLD_SIZE": "2"}, TorchElastic, Topology(1, 2, 1, 2, 0, 1)),
        ({"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "a"}, TorchElastic, Topology(1, 2, 1, 2, 0, 1)),
        (TWO_PER_NODE, TorchElastic, Topology(3, 4, 1, 2, 1, 2)),
        ({"LOCAL_RANK": "-1"}, SingleProcess, Topology()),
        ({"RANK": "0", "WORLD_SIZE": "1"}, SingleProcess, Topology()),
        ({"RANK": "0", "WORLD_SIZE": "2"}, SingleProcess, Topology()),  # and nowhere to meet: left by something else
        (OPEN_MPI, MPI, Topology(3, 4, 1, 2, 1, 2)),
        (INTEL_MPI, MPI, Topology(1, 2, 1, 2, 0, 1)),
        (MVAPICH, MPI, Topology(1, 2, 1, 2, 0, 1)),
        ({"PMI_RANK": "1", "PMI_SIZE": "3"}, MPI, Topology(1, 3, 1, 3, 0, 1)),
        ({"PMI_RANK": "0", "PMI_SIZE": "1"}, SingleProcess, Topology()),
        ({**OPEN_MPI, **TORCHRUN}, TorchElastic, Topology(5, 8, 1, 4, 1, 2)),  # torchrun inside mpirun
        ({"PJRT_LOCAL_PROCESS_COUNT": "4"}, SingleProcess, Topology()),  # torch_xla isn't installed
    ],
)
def test_the_launcher_is_recognised_and_its_ranks_are_read(environ: dict, kind: type, expected: Topology) -> None:
    environment = detect_environment(environ)
    assert type(environment) is kind
    assert environment.topology() == expected


def test_the_process_is_looked_at_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [*TORCHRUN, *OPEN_MPI, *INTEL_MPI, *MVAPICH]:
        monkeypatch.delenv(name, raising=False)
    assert isinstance(detect_environment(), SingleProcess)
    for name, value in TORCHRUN.items():
        monkeypatch.setenv(name, value)
    assert detect_environment().topology().rank == 5


def test_a_script_that_nobody_recognises_is_alone() -> None:
    assert ENVIRONMENTS[-1] is SingleProcess
    assert [kind.distributed for kind in ENVIRONMENTS] == [True, True, True, True, True, False]
    assert [kind.speaks_mpi for kind in ENVIRONMENTS] == [False, False, False, False, True, False]


@pytest.mark.parametrize(
    ("environ", "address", "port"),
    [
        (TORCHRUN, "node0", 29512),
        ({"LOCAL_RANK": "0"}, "127.0.0.1", 29500),
        (INTEL_MPI, "127.0.0.1", 29500),
        ({**OPEN_MPI, "MASTER_ADDR": "host0"}, "host0", 29500),
    ],
)
def test_where_the_processes_meet(environ: dict, address: str, port: int) -> None:
    environment = detect_environment(environ)
    assert (environment.main_address(), environment.main_port()) == (address, port)


def test_several_machines_need_an_address() -> None:
    with pytest.raises(ValueError, match="2 machines, started by mpirun, and no MASTER_ADDR"):
        detect_environment(OPEN_MPI).main_address()


def test_ranks_are_exported_under_the_names_of_torch() -> None:
    target: dict[str, str] = {}
    detect_environment({**OPEN_MPI, "MASTER_ADDR": "host0"}).export(target)
    assert target == {
        "RANK": "3",
        "WORLD_SIZE": "4",
        "LOCAL_RANK": "1",
        "LOCAL_WORLD_SIZE": "2",
        "MASTER_ADDR": "host0",
        "MASTER_PORT": "29500",
    }


@pytest.mark.parametrize(
    ("environ", "words"),
    [
        ({"LOCAL_RANK": "zero"}, "LOCAL_RANK='zero'"),
        ({"LOCAL_RANK": "0", "RANK": "2", "WORLD_SIZE": "2"}, "rank 2 in a world of 2"),
        ({"OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_RANK": "2"}, "rank 2 in a world of 2"),
        ({"LOCAL_RANK": "0", "MASTER_PORT": "http"}, "MASTER_PORT='http'"),
    ],
)
def test_what_makes_no_sense_is_named(environ: dict, words: str) -> None:
    def ask() -> None:
        environment = detect_environment(environ)
        environment.topology()
        environment.main_port()

    with pytest.raises(ValueError, match=words):
        ask()


def test_a_group_that_the_script_has_formed_knows_best(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch.distributed as dist

    monkeypatch.setattr(dist, "is_initialized", lambda: True)
    monkeypatch.setattr(dist, "get_rank", lambda: 5)
    monkeypatch.setattr(dist, "get_world_size", lambda: 6)
    found = detect_environment({"LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2", "RANK": "0", "WORLD_SIZE": "1"})
    assert type(found) is ExistingGroup
    assert found.topology() == Topology(5, 6, 1, 2, 2, 3)
    assert detect_environment({}).topology() == Topology(5, 6, 5, 6, 0, 1)


@pytest.fixture
def torch_xla(monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    """A fake of the runtime of torch_xla on the second of two machines with four devices each."""
    import importlib.machinery

    package, runtime = types.ModuleType("torch_xla"), types.ModuleType("torch_xla.runtime")
    package.__spec__ = importlib.machinery.ModuleSpec("torch_xla", loader=None, is_package=True)
    package.runtime = runtime
    runtime.global_ordinal = lambda: 6
    runtime.world_size = lambda: 8
    runtime.local_ordinal = lambda: 2
    runtime.local_device_count = lambda: 4
    runtime.get_master_ip = lambda: "10.0.0.2"
    monkeypatch.setitem(sys.modules, "torch_xla", package)
    monkeypatch.setitem(sys.modules, "torch_xla.runtime", runtime)
    return runtime


def test_the_runtime_of_torch_xla_numbers_devices(torch_xla) -> None:
    found = detect_environment({"PJRT_LOCAL_PROCESS_COUNT": "4"})
    assert type(found) is XlaRuntime
    assert found.topology() == Topology(6, 8, 2, 4, 1, 2)
    assert not found.process_group


@pytest.mark.parametrize(
    ("environ", "world_size", "expected"),
    [({}, 8, "10.0.0.2"), ({"MASTER_ADDR": "host0"}, 8, "host0"), ({}, 4, "127.0.0.1")],
)
def test_the_runtime_of_torch_xla_knows_the_first_machine(
    torch_xla, environ: dict, world_size: int, expected: str
) -> None:
    torch_xla.world_size = lambda: world_size
    torch_xla.global_ordinal = lambda: 2
    assert XlaRuntime(environ).main_address() == expected


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, CPUInformation(0, 1, 0, 1)),
        ({"RANK": "3", "WORLD_SIZE": "4", **INTEL_MPI}, CPUInformation(3, 4, 1, 2)),
        ({"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2"}, CPUInformation(1, 2, 0, 1)),
        ({"PMI_RANK": "1", "OMPI_COMM_WORLD_RANK": "2", "MV2_COMM_WORLD_RANK": "3"}, CPUInformation(1, 1, 0, 1)),
        (MVAPICH, CPUInformation(1, 2, 1, 2)),
    ],
)
def test_ranks_on_cpus_are_read_under_every_name(monkeypatch, environ: dict, expected: CPUInformation) -> None:
    monkeypatch.setattr(os, "environ", environ)
    assert get_cpu_distributed_information() == expected


def test_recognising_a_launcher_imports_no_torch() -> None:
    code = (
        "import sys; from accelerate.cluster.environments import detect_environment; detect_environment().topology(); "
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0
