from __future__ import annotations

import pickle
from datetime import timedelta

import pytest
import torch

from accelerate.cluster.single import SingleProcess
from accelerate.comm.collectives import Alone
from accelerate.config.enums import DistributedType
from accelerate.devices.device import Device
from accelerate.state import GradientState, PartialState, partial
from accelerate.state.process_state import ProcessState

LAUNCHER = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


@pytest.fixture(autouse=True)
def _started_by_hand(monkeypatch):
    for name in LAUNCHER:
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def launched(monkeypatch):
    """Make this process rank 3 of 4, second on the second machine; returns what the process group was started with."""
    for name, value in zip(LAUNCHER, ("3", "4", "1", "2", "host0", "29512"), strict=True):
        monkeypatch.setenv(name, value)
    started = []
    monkeypatch.setattr(partial.process_group, "start", lambda environment, **options: started.append(options))
    monkeypatch.setattr(partial, "TorchCollectives", lambda device, debug: Alone(device, debug))
    return started


FACTS = ("distributed_type", "backend", "num_processes", "process_index", "local_process_index", "device")


def facts(state):
    return tuple(getattr(state, name) for name in FACTS)


def test_a_script_alone():
    state = PartialState()
    assert facts(state) == (DistributedType.NO, None, 1, 0, 0, torch.device("cpu"))
    assert (state.debug, state.fork_launched, state._cpu) == (False, False, False)
    assert state.is_main_process
    assert state.is_local_main_process
    assert state.is_last_process
    assert not state.use_distributed
    assert state.default_device == torch.device("cpu")
    state.wait_for_everyone()
    state.set_device()


@pytest.mark.parametrize("cpu", [False, True])
def test_a_launched_script_without_accelerators_runs_on_the_cpu_through_gloo(launched, cpu):
    state = PartialState(cpu=cpu)
    assert facts(state) == (DistributedType.MULTI_CPU, "gloo", 4, 3, 1, torch.device("cpu:0"))
    assert launched == [{"device": torch.device("cpu:0"), "backend": "gloo", "timeout": None, "init_method": None}]
    assert state.use_distributed
    assert state.is_last_process
    assert not state.is_main_process
    assert not state.is_local_main_process


def test_settings_reach_the_process_group(launched):
    PartialState(backend="GLOO", timeout=timedelta(seconds=7), init_method="file:///tmp/meet", _use_sagemaker_dp=False)
    assert launched == [
        {
            "device": torch.device("cpu:0"),
            "backend": "gloo",
            "timeout": timedelta(seconds=7),
            "init_method": "file:///tmp/meet",
        }
    ]


def test_one_process_needs_no_group(monkeypatch):
    monkeypatch.setenv("LOCAL_RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "1")
    state = PartialState(backend="gloo", timeout=timedelta(seconds=7))
    assert facts(state) == (DistributedType.NO, None, 1, 0, 0, torch.device("cpu"))
    assert not torch.distributed.is_initialized()


FLAGS = [("ACCELERATE_DEBUG_MODE", "debug"), ("FORK_LAUNCHED", "fork_launched"), ("ACCELERATE_USE_CPU", "_cpu")]


@pytest.mark.parametrize(("variable", "attribute"), FLAGS)
@pytest.mark.parametrize("word", ["1", "yes", "True"])
def test_flags_of_the_environment(monkeypatch, variable, attribute, word):
    monkeypatch.setenv(variable, word)
    state = PartialState()
    assert getattr(state, attribute) is True
    assert state._collectives.debug is (attribute == "debug")


def test_the_process_is_bound_to_its_cores_when_asked(monkeypatch, launched):
    bound = []
    monkeypatch.setattr(partial, "set_numa_affinity", bound.append)
    PartialState()
    assert bound == []
    PartialState._reset_state()
    monkeypatch.setenv("ACCELERATE_CPU_AFFINITY", "1")
    PartialState()
    assert bound == [1]


def test_the_device_can_be_named_in_the_environment(monkeypatch):
    monkeypatch.setenv("ACCELERATE_TORCH_DEVICE", "meta")
    monkeypatch.setattr("accelerate.devices.select.device_for", lambda name: FakeDevice(torch.device(name)))
    assert PartialState().device == torch.device("meta")


class FakeDevice:
    def __init__(self, torch_device):
        self.torch_device = torch_device


def test_how_the_run_is_decided_can_be_replaced(monkeypatch, launched):
    def alone(self, cpu=False, sagemaker_dp=False, backend=None):
        assert (cpu, sagemaker_dp, backend) == (True, True, "gloo")
        return None, DistributedType.NO

    monkeypatch.setattr(PartialState, "_prepare_backend", alone)
    state = PartialState(cpu=True, backend="gloo", _use_sagemaker_dp=True)
    assert facts(state) == (DistributedType.NO, None, 1, 0, 0, torch.device("cpu"))
    assert launched == []
    assert isinstance(state._environment, SingleProcess)


def test_the_decision_can_be_asked_for(launched):
    assert PartialState()._prepare_backend(cpu=True) == ("gloo", DistributedType.MULTI_CPU)


def test_a_failed_start_leaves_nothing_behind(monkeypatch, launched):
    def fail(environment, **options):
        raise ConnectionError("nobody there")

    monkeypatch.setattr(partial.process_group, "start", fail)
    with pytest.raises(ConnectionError):
        PartialState()
    assert PartialState._shared_state == {}


def test_every_instance_shows_the_same_and_takes_assignments():
    first = PartialState()
    second = PartialState(cpu=True)
    second.distributed_type = DistributedType.FSDP
    second.anything = 5
    assert first.distributed_type == DistributedType.FSDP
    assert PartialState().anything == 5
    assert PartialState._shared_state != {}


def test_what_comes_too_late_is_said_once(launched):
    PartialState(backend="gloo")
    with pytest.warns(UserWarning, match=r"PartialState\(backend='nccl'\) has no effect.*'gloo'") as warned:
        PartialState(backend="nccl")
    PartialState(backend="nccl")
    assert [warning.filename for warning in warned] == [__file__]
    PartialState._shared_state["device"] = torch.device("meta")
    with pytest.warns(UserWarning, match="cpu=True"):
        PartialState(cpu=True)


def test_a_keyword_that_is_no_setting_is_refused():
    with pytest.raises(TypeError, match=r"PartialState\(bakend=") as refusal:
        PartialState(bakend="gloo")
    text = str(refusal.value)
    assert "Did you mean 'backend'?" in text
    assert all(part in text for part in ("Given:", "Why not:", "Allowed:", "What to do:"))
    assert PartialState._shared_state == {}


def test_after_a_reset_known_attributes_say_so():
    state = PartialState()
    state._reset_state()
    assert not state.initialized
    for name in ("device", "distributed_type", "_mixed_precision", "_collectives"):
        with pytest.raises(AttributeError, match="`PartialState`, which is empty"):
            getattr(state, name)
    with pytest.raises(AttributeError, match=r"^'PartialState' object has no attribute 'someotherthing'$"):
        _ = state.someotherthing
    assert repr(state) == "PartialState (not initialised)\n"
    assert PartialState().device == state.device  # the old instance sees the new state


def test_repr(launched):
    assert repr(PartialState()) == (
        "Distributed environment: DistributedType.MULTI_CPU  Backend: gloo\n"
        "Num processes: 4\nProcess index: 3\nLocal process index: 1\nDevice: cpu:0\n"
    )
    PartialState._shared_state.update(backend=None, distributed_type=DistributedType.NO)
    assert repr(PartialState()).startswith("Distributed environment: DistributedType.NO\n")


def test_the_runtime_holds_the_facts(launched):
    runtime = PartialState().runtime()
    assert (runtime.topology.rank, runtime.topology.world_size, runtime.topology.node_rank) == (3, 4, 1)
    assert isinstance(runtime.device, Device)
    assert runtime.device.torch_device == torch.device("cpu:0")
    assert runtime.collectives is PartialState()._collectives
    assert runtime.gradient_state.__dict__ is GradientState().__dict__


def test_a_worker_process_gets_the_facts_and_no_process_group(launched):
    carried = pickle.dumps(PartialState())
    PartialState._reset_state()
    arrived = pickle.loads(carried)
    assert facts(arrived) == (DistributedType.MULTI_CPU, "gloo", 4, 3, 1, torch.device("cpu:0"))
    assert PartialState._shared_state == {}
    with pytest.raises(AttributeError, match="_collectives"):
        arrived.wait_for_everyone()


@pytest.mark.parametrize(("forked", "group", "left"), [(False, None, [None]), (True, None, []), (True, "dp", ["dp"])])
def test_leaving_the_process_group(monkeypatch, forked, group, left):
    stopped = []
    monkeypatch.setattr("accelerate.state.process_state.process_group.stop", stopped.append)
    PartialState().fork_launched = forked
    PartialState().destroy_process_group(group)
    assert stopped == left


def test_both_states_are_process_states():
    assert issubclass(PartialState, ProcessState)


def test_debug_mode_can_be_turned_on_later() -> None:
    state = PartialState()
    assert not state.debug
    PartialState().debug = True
    assert state.debug
    assert state._collectives.debug
