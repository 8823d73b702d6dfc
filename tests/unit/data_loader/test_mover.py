"""Copies that go on beside the computation: on which stream, who waits for whom, and when there is no other stream."""

from __future__ import annotations

import pickle
from types import SimpleNamespace

import pytest
import torch
from torch.utils.data import DataLoader

from accelerate.data_loader import mover as module
from accelerate.data_loader import prepare_data_loader
from accelerate.data_loader.dealing import Tail
from accelerate.data_loader.marked import Marked
from accelerate.data_loader.mover import Mover, Overlapped, ToCpu, ToDevice, mover_to

META = torch.device("meta")


class Hardware:
    """Stands in for an accelerator with streams; `log` tells what was asked of it, in order."""

    def __init__(self, kind="meta"):
        self.kind = kind
        self.log = []
        self.streams = 0
        self.computing = self.current = SimpleNamespace(name="computing", wait_event=lambda event: self.say("wait"))

    def say(self, *what):
        self.log.append(what if len(what) > 1 else what[0])

    def current_accelerator(self):
        return None if self.kind is None else torch.device(self.kind)

    def is_available(self):
        return self.kind is not None

    def current_stream(self, device):
        return self.current

    def set_stream(self, stream):
        self.current = stream

    def stream(self, device):
        self.streams += 1
        return SimpleNamespace(name="copying", record_event=lambda: self.say("copied"))

    def send(self, batch, device, non_blocking=False):
        self.say("copy", self.current.name, non_blocking)
        return send_to_device(batch, device, non_blocking=non_blocking)


send_to_device = module.send_to_device


@pytest.fixture
def hardware(monkeypatch):
    """Return what plays the accelerator, in the place of torch's functions."""
    fake = Hardware()
    monkeypatch.setattr(torch, "accelerator", fake)
    monkeypatch.setattr(torch, "Stream", fake.stream)
    monkeypatch.setattr(module, "send_to_device", fake.send)
    monkeypatch.setattr(torch.Tensor, "record_stream", lambda tensor, stream: fake.say("in use", stream.name))
    return fake


def test_a_batch_is_copied_on_its_own_stream_and_waited_for_when_it_is_given_out(hardware):
    mover = mover_to(META, non_blocking=True)
    assert type(mover) is Overlapped
    (held,) = mover.ahead(iter([{"x": torch.ones(2), "y": [torch.ones(3)], "name": "a"}]))
    assert hardware.log == [("copy", "copying", True), "copied"]
    assert hardware.current is hardware.computing
    batch = mover.arrive(held)
    assert hardware.log[2:] == ["wait", ("in use", "computing"), ("in use", "computing")]
    assert batch["x"].is_meta
    assert batch["y"][0].is_meta
    assert batch["name"] == "a"


class ByHand(DataLoader):
    """Makes its batches without asking torch for the accelerator."""

    def __iter__(self):
        return iter(torch.arange(6).split(2))


def test_the_next_batch_is_under_way_before_a_batch_is_given_out_and_the_order_stays(hardware, runtime):
    hardware.kind = None
    alone = runtime()  # computes on the CPU
    hardware.kind = "meta"
    loader = prepare_data_loader(
        ByHand(range(6), batch_size=2), runtime=alone, device=META, put_on_device=True, non_blocking=True
    )
    shapes = []
    for number, batch in enumerate(loader):
        hardware.say(f"step {number}")
        shapes.append((batch.shape, batch.is_meta))
    copy, given = [("copy", "copying", True), "copied"], ["wait", ("in use", "computing")]
    assert hardware.log == [*copy, *copy, *given, "step 0", *copy, *given, "step 1", *given, "step 2"]
    assert shapes == [((2,), True)] * 3
    assert hardware.streams == 2  # one when the device was asked whether it has any, and one for the pass


class Movable:
    def to(self, device, non_blocking=False):
        return self


@pytest.mark.parametrize(
    "batch",
    [[torch.ones(1), Movable()], [torch.ones(1), torch.ones(1, device="meta")]],
    ids=["an object moves itself", "it is there already"],
)
def test_what_other_streams_may_not_touch_is_moved_where_the_computation_is(hardware, batch):
    mover = Overlapped(META)
    (held,) = mover.ahead(iter([batch]))
    assert hardware.log == [("copy", "computing", True)]
    assert mover.arrive(held) is held


def test_marks_stay(hardware):
    tail = Tail((1, 0), 1, 2)
    mover = Overlapped(META)
    (held,) = mover.ahead(iter([Marked([torch.ones(2)], tail)]))
    batch = mover.arrive(held)
    assert hardware.log[-2:] == ["wait", ("in use", "computing")]
    assert batch.tail is tail
    assert batch.data[0].is_meta


def test_an_error_while_copying_leaves_the_stream_of_the_computation_current(hardware, monkeypatch):
    def out_of_memory(*args, **kwargs):
        raise RuntimeError("out of memory")

    monkeypatch.setattr(module, "send_to_device", out_of_memory)
    with pytest.raises(RuntimeError, match="out of memory"):
        list(Overlapped(META).ahead(iter([torch.ones(1)])))
    assert hardware.current is hardware.computing


@pytest.mark.parametrize(
    ("device", "non_blocking", "accelerator", "kind"),
    [
        ("meta", True, "meta", Overlapped),
        ("meta", False, "meta", ToDevice),
        ("meta", True, None, ToDevice),
        ("meta", True, "cuda", ToDevice),
        ("cpu", True, "meta", ToCpu),
        ("cpu", True, None, ToCpu),
        (None, True, "meta", Mover),
    ],
)
def test_there_is_a_stream_only_where_it_helps(hardware, device, non_blocking, accelerator, kind):
    hardware.kind = accelerator
    mover = mover_to(device, non_blocking)
    assert type(mover) is kind
    assert pickle.loads(pickle.dumps(mover)).settled is mover.settled
    if kind is not Overlapped:
        batch = torch.ones(1)
        assert mover.arrive(next(mover.ahead(iter([batch])))).is_meta == (kind is ToDevice)
        assert hardware.streams == 0


@pytest.mark.parametrize("error", [RuntimeError, NotImplementedError])
def test_a_device_without_streams_is_found_out(hardware, monkeypatch, error):
    def none(device):
        raise error("no streams")

    monkeypatch.setattr(torch, "Stream", none)
    assert type(mover_to(META, non_blocking=True)) is ToDevice
