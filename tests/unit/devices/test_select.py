"""Which device a process gets: what is asked for, what is there, and its local rank."""

from __future__ import annotations

import pytest
import torch

from accelerate.cluster.topology import Topology
from accelerate.devices import select
from accelerate.devices.cuda import CudaDevice
from accelerate.devices.select import default_device, default_spec, select_device
from accelerate.devices.specs import SPECS

ALONE = Topology()


def ranks(local_rank: int, local_world_size: int = 2, **others: int) -> Topology:
    """One of several processes on one machine."""
    return Topology(
        rank=local_rank, world_size=local_world_size, local_rank=local_rank, local_world_size=local_world_size, **others
    )


def test_a_machine_without_an_accelerator_computes_on_the_cpu(machine) -> None:
    assert default_spec().name == "cpu"
    assert str(default_device().torch_device) == "cpu"


@pytest.mark.parametrize(
    ("topology", "distributed", "expected"),
    [
        (ALONE, None, "cpu"),
        (ALONE, True, "cpu:0"),  # torchrun with one process
        (ranks(1), None, "cpu:0"),
        (ranks(1), False, "cpu"),
    ],
)
@pytest.mark.parametrize("cpu", [True, False])
def test_the_cpu_has_an_index_under_a_distributed_run_only(
    machine, topology: Topology, distributed: bool | None, expected: str, cpu: bool
) -> None:
    assert str(select_device(cpu=cpu, topology=topology, distributed=distributed).torch_device) == expected


@pytest.mark.parametrize(
    ("topology", "expected", "activated"),
    [(ALONE, "xpu", []), (ranks(0), "xpu:0", [("set_device", 0)]), (ranks(1), "xpu:1", [("set_device", 1)])],
)
def test_each_local_rank_gets_its_own_device_and_makes_it_current(
    machine, topology: Topology, expected: str, activated: list
) -> None:
    backend = machine.add("xpu")
    assert str(select_device(cpu=False, topology=topology).torch_device) == expected
    assert backend.calls == activated


def test_the_cpu_is_used_when_asked_for_although_there_is_better(machine) -> None:
    machine.add("xpu")
    assert str(select_device(cpu=True, topology=ALONE).torch_device) == "cpu"


@pytest.mark.parametrize("cpu", [True, False])
def test_the_environment_has_the_last_word(machine, monkeypatch: pytest.MonkeyPatch, cpu: bool) -> None:
    backend = machine.add("xpu")
    monkeypatch.setenv("ACCELERATE_TORCH_DEVICE", "xpu:1")
    assert str(select_device(cpu=cpu, topology=ranks(0)).torch_device) == "xpu:1"
    assert backend.calls == []  # used as it is written, and nothing is made current


def test_the_first_kind_in_the_table_that_is_present_wins(machine, monkeypatch: pytest.MonkeyPatch) -> None:
    machine.add("xpu")
    assert default_spec().name == "xpu"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert default_spec().name == "cuda"
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    assert default_spec().name == "mps"


def test_a_backend_without_a_row_is_found_through_torch(machine) -> None:
    machine.add("privateuseone")
    assert default_spec().name == "privateuseone"
    assert str(select_device(cpu=False, topology=ranks(1)).torch_device) == "privateuseone:1"


@pytest.mark.parametrize("backend", [None, "xccl", "xpu:xccl,cpu:gloo"])
def test_more_processes_than_devices_are_refused_with_what_to_do(machine, backend: str | None) -> None:
    machine.add("xpu", count=2)
    with pytest.raises(ValueError, match="3 processes on this machine, which has 2 device") as refused:
        select_device(cpu=False, topology=ranks(2, 3), backend=backend)
    assert "--num_processes 2" in str(refused.value)
    assert "--cpu" in str(refused.value)


@pytest.mark.parametrize(
    ("backend", "visible"),
    [("gloo", None), ("xpu:gloo,cpu:gloo", None), (None, "0,1")],
    ids=["gloo carries tensors of a shared device", "also in a combination", "each process was shown its own devices"],
)
def test_devices_may_be_shared_where_that_can_be_right(
    machine, monkeypatch: pytest.MonkeyPatch, backend: str | None, visible: str | None
) -> None:
    machine.add("xpu", count=2)
    if visible:
        monkeypatch.setenv("ZE_AFFINITY_MASK", visible)
    assert str(select_device(cpu=False, topology=ranks(2, 3), backend=backend).torch_device) == "xpu:0"


def test_torch_xla_has_given_each_process_its_device(machine, install) -> None:
    install("torch_xla", device=lambda: torch.device("xla", 0), device_count=lambda: 1)
    install("torch_xla.distributed.xla_backend")
    assert str(select_device(cpu=False, topology=ranks(3, 4)).torch_device) == "xla:0"
    assert str(select_device(cpu=True, topology=ranks(3, 4)).torch_device) == "cpu:0"


def test_a_script_that_formed_its_group_has_arranged_the_devices(machine, monkeypatch: pytest.MonkeyPatch) -> None:
    machine.add("xpu", count=2)
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    assert str(select_device(cpu=False, topology=ranks(3, 4)).torch_device) == "xpu:1"


def test_several_processes_on_a_device_for_one_run_on_the_cpu_and_say_so(
    machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    with pytest.warns(UserWarning, match="serves one process only, and 2 were started: they run on the CPU"):
        device = select_device(cpu=False, topology=ranks(1))
    assert str(device.torch_device) == "cpu:0"


@pytest.mark.parametrize(("world_size", "checked"), [(1, 0), (2, 1)])
def test_cards_are_checked_only_when_they_have_to_talk(
    machine, monkeypatch: pytest.MonkeyPatch, world_size: int, checked: int
) -> None:
    calls: list[int] = []
    monkeypatch.setattr(CudaDevice, "is_present", classmethod(lambda cls, spec: True))
    monkeypatch.setattr(CudaDevice, "check_multi_process", lambda self: calls.append(1))
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", lambda index: None)
    device = select_device(cpu=False, topology=ranks(0, world_size), distributed=True)
    assert str(device.torch_device) == "cuda:0"
    assert len(calls) == checked


def test_every_kind_but_the_cpu_is_asked_in_the_order_of_the_table(machine, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    class Absent:
        @staticmethod
        def is_present(spec) -> bool:
            asked.append(spec.name)
            return False

    monkeypatch.setattr(select, "device_class", lambda spec: Absent)
    assert default_spec().name == "cpu"
    assert asked == [spec.name for spec in SPECS if spec.name != "cpu"]
