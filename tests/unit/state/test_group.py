from __future__ import annotations

import sys
from types import ModuleType

import pytest
import torch

from accelerate.cluster.elastic import TorchElastic
from accelerate.cluster.existing import ExistingGroup
from accelerate.cluster.mpi import MPI
from accelerate.devices.device import build_device
from accelerate.devices.specs import CPU
from accelerate.state import group
from accelerate.state.group import GroupSettings, choose_backend, load_sagemaker_backend

SAGEMAKER = "ACCELERATE_SAGEMAKER_DISTRIBUTED_TYPE"


@pytest.mark.parametrize(
    ("given", "environment", "wanted"),
    [
        ({}, {}, False),
        ({}, {"ACCELERATE_USE_SAGEMAKER": "true"}, False),
        ({}, {"ACCELERATE_USE_SAGEMAKER": "true", SAGEMAKER: "NO"}, False),
        ({}, {"ACCELERATE_USE_SAGEMAKER": "true", SAGEMAKER: "DATA_PARALLEL"}, True),
        ({}, {"ACCELERATE_USE_SAGEMAKER": "false", SAGEMAKER: "DATA_PARALLEL"}, False),
        ({"_use_sagemaker_dp": True}, {}, True),
        ({"_use_sagemaker_dp": False}, {"ACCELERATE_USE_SAGEMAKER": "true", SAGEMAKER: "DATA_PARALLEL"}, False),
    ],
)
def test_sagemaker_is_asked_for_by_argument_then_environment(monkeypatch, given, environment, wanted):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert GroupSettings.of(given).sagemaker is wanted


def test_sagemaker_registers_its_own_backend(monkeypatch):
    for name in ("smdistributed", "smdistributed.dataparallel", "smdistributed.dataparallel.torch"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    name = "smdistributed.dataparallel.torch.torch_smddp"
    monkeypatch.setitem(sys.modules, name, ModuleType(name))
    assert load_sagemaker_backend() == "smddp"


def test_sagemaker_without_its_package_is_refused():
    with pytest.raises(ImportError, match="smdistributed") as refusal:
        load_sagemaker_backend()
    assert all(part in str(refusal.value) for part in ("Given:", "Why not:", "Allowed:", "What to do:"))


@pytest.fixture
def resolved(monkeypatch):
    """Record what the choice of a backend was asked with."""
    asked = []

    def resolve(requested, **facts):
        asked.append((requested, facts))
        return "chosen"

    monkeypatch.setattr(group, "resolve_backend", resolve)
    return asked


@pytest.mark.parametrize(("environment", "under_mpi"), [(TorchElastic({}), False), (MPI({}), True)])
@pytest.mark.parametrize(
    ("variables", "with_cpu"),
    [
        ({}, False),
        ({"FSDP_OFFLOAD_PARAMS": "true"}, False),
        ({"ACCELERATE_USE_FSDP": "true"}, True),
        ({"ACCELERATE_USE_FSDP": "true", "FSDP_STATE_DICT_TYPE": "SHARDED_STATE_DICT"}, False),
        (
            {
                "ACCELERATE_USE_FSDP": "true",
                "FSDP_STATE_DICT_TYPE": "SHARDED_STATE_DICT",
                "FSDP_OFFLOAD_PARAMS": "true",
            },
            True,
        ),
    ],
)
def test_the_backend_depends_on_device_launcher_and_what_is_communicated(
    monkeypatch, resolved, environment, under_mpi, variables, with_cpu
):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert choose_backend(environment, build_device(CPU, 0), None) == "chosen"
    facts = {
        "device": torch.device("cpu:0"),
        "preferred": "gloo",
        "with_cpu": with_cpu,
        "under_mpi": under_mpi,
    }
    assert resolved == [(None, facts)]


def test_a_group_that_exists_keeps_its_backend(monkeypatch):
    monkeypatch.setattr(group.dist, "get_backend", lambda: "gloo")
    device = build_device(CPU, 0)
    assert choose_backend(ExistingGroup({}), device, None) == "gloo"
    assert choose_backend(ExistingGroup({}), device, "gloo") == "gloo"
    with pytest.raises(ValueError, match="already, with backend 'gloo'") as refusal:
        choose_backend(ExistingGroup({}), device, "nccl")
    assert all(part in str(refusal.value) for part in ("Given:", "Why not:", "Allowed:", "What to do:"))
