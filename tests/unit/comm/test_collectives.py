from __future__ import annotations

import runpy
import sys
import threading
import types
from pathlib import Path

import pytest
import torch

from accelerate.comm.collectives import Alone
from accelerate.comm.fake import FakeWorld
from accelerate.comm.xla import XlaCollectives

CHECKS = runpy.run_path(str(Path(__file__).with_name("checks.py")))["CHECKS"]
every_check = pytest.mark.parametrize("check", CHECKS.values(), ids=CHECKS)


@every_check
def test_alone(check):
    check(Alone())


@every_check
@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_fake_world(check, world_size):
    FakeWorld(world_size).run(check)


@every_check
def test_xla(check, torch_xla):
    def on_xla(ranks):
        torch_xla.ranks = ranks
        check(XlaCollectives("cpu"))

    FakeWorld(2).run(on_xla)


def test_a_gathered_tensor_is_a_copy():
    tensor = torch.ones(2)
    Alone().all_gather(tensor).zero_()
    assert tensor.tolist() == [1, 1]


@pytest.mark.parametrize("device", ["cpu", "cpu:0", torch.device("cpu", 0)])
def test_one_name_for_the_cpu(device):
    assert Alone(device).device == torch.device("cpu")


@pytest.fixture
def torch_xla(monkeypatch):
    """The part of torch_xla that is used, between the ranks of a fake world; each thread sets its own `ranks`."""
    own = threading.local()
    model = types.ModuleType("torch_xla.core.xla_model")
    model.REDUCE_SUM, model.REDUCE_MAX, model.REDUCE_MIN = "sum", "max", "min"

    def all_gather(value, dim=0, groups=None, output=None, pin_layout=True):
        return torch.cat(list(own.ranks.all_gather(value)), dim)

    def all_reduce(reduce_type, inputs, scale=1.0, groups=None, pin_layout=True):
        assert isinstance(inputs, list), "only a list is reduced in place"
        return [own.ranks.all_reduce(each, reduce_type) for each in inputs]

    def collective_broadcast(tensors, root_ordinal=0, groups=None, pin_layout=True):
        for tensor in tensors:
            own.ranks.broadcast(tensor, root_ordinal)

    def rendezvous(tag, payload=b"", replicas=()):
        assert isinstance(payload, bytes)
        return own.ranks.all_gather_object(payload)

    for function in (all_gather, all_reduce, collective_broadcast, rendezvous):
        setattr(model, function.__name__, function)
    runtime = types.ModuleType("torch_xla.runtime")
    runtime.global_ordinal = lambda: own.ranks.rank
    runtime.world_size = lambda: own.ranks.world_size
    package, core = types.ModuleType("torch_xla"), types.ModuleType("torch_xla.core")
    package.core, package.runtime, core.xla_model = core, runtime, model
    for module in (package, core, model, runtime):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    return own
