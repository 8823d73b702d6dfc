"""The engine behind offloaded models: the same numbers as without it, on the CPU and over fakes of streams."""

from __future__ import annotations

import contextlib
import copy
import os
import threading
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from accelerate.big_modeling import OffloadSettings, cpu_offload, disk_offload, dispatch_model, engine
from accelerate.big_modeling.engine import Bringer, Engine
from accelerate.big_modeling.meta import init_empty_weights
from accelerate.big_modeling.offloaded import OffloadedWeightsLoader
from accelerate.big_modeling.read_ahead import ReadAhead, bring_in
from accelerate.big_modeling.spans import Buffer, Span
from accelerate.big_modeling.store import offload_state_dict
from accelerate.big_modeling.streams import Plain, Side, copies_to
from tests.unit.big_modeling.checkpoints import PARTS, TOKENS, Net, save, trained

CPU = torch.device("cpu")


class Skipping(nn.Module):
    """Layers of which a forward runs those that it is told to, in the order in which it is told."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(4, 4) for _ in range(6)])

    def forward(self, value: torch.Tensor, which: list[int]) -> torch.Tensor:
        for index in which:
            value = torch.tanh(self.layers[index](value))
        return value


PATHS = [[0, 1, 2, 3, 4, 5]] * 3 + [[0, 2, 4]] * 2 + [[5, 5, 5, 1]] + [[], [3]] + [[0, 1, 2, 3, 4, 5]]


def half_on_disk(tmp_path: Path, settings: OffloadSettings | None = None) -> Net:
    """Return a model whose weights in fp32 files are to be bf16, so that each has to be converted."""
    path = str(save(trained(), tmp_path / "m.safetensors"))
    names = [name for name in trained().state_dict() if name != "head.weight"]
    index = {name: {"safetensors_file": path, "weight_name": name, "dtype": "bfloat16"} for name in names}
    with init_empty_weights():
        net = Net(dtype=torch.bfloat16).eval()
    return dispatch_model(net, {"": "disk"}, offload_index=index, offload_buffers=True, offload_settings=settings)


@pytest.mark.parametrize(
    "settings",
    [
        None,
        OffloadSettings(prefetch=False),
        OffloadSettings(cache_size=0),
        OffloadSettings(cache_size="1KB", readers=3),
    ],
    ids=["default", "off", "no room", "little room"],
)
def test_converted_weights_are_those_of_a_converted_model(settings: OffloadSettings | None, tmp_path: Path) -> None:
    net = half_on_disk(tmp_path, settings)
    expected = trained().to(torch.bfloat16)(TOKENS)
    for _ in range(4):
        assert torch.equal(net(TOKENS), expected)
    prefetcher = net.embed._hf_hook.weights_map.dataset.engine._prefetchers[CPU]
    assert prefetcher._idle <= (settings or OffloadSettings()).room(96)


@pytest.mark.parametrize("where", ["cpu", "disk", "converted"])
def test_forwards_that_skip_and_repeat_layers(where: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, given = Skipping().requires_grad_(False), torch.randn(2, 4)
    if where == "converted":
        model, given = model.double(), given.double()
    expected = [model(given, path) for path in PATHS]
    if where == "cpu":
        cpu_offload(model)
    elif where == "disk":
        disk_offload(model, tmp_path)
    else:
        save_file(dict(model.state_dict()), tmp_path / "m.safetensors")
        entry = {"safetensors_file": str(tmp_path / "m.safetensors"), "dtype": "float32"}
        expected = [copy.deepcopy(model).float()(given.float(), path) for path in PATHS]
        model, given = model.float(), given.float()
        dispatch_model(model, {"": "disk"}, offload_index={name: dict(entry) for name in model.state_dict()})
    for path, wanted in zip(PATHS, expected, strict=True):
        assert torch.equal(model(given, path), wanted)


def test_several_threads_run_an_offloaded_model(tmp_path: Path) -> None:
    net, expected, results = half_on_disk(tmp_path), trained().to(torch.bfloat16)(TOKENS), []
    threads = [threading.Thread(target=lambda: results.extend(net(TOKENS) for _ in range(5))) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert len(results) == 15
    assert all(torch.equal(each, expected) for each in results)


@pytest.mark.parametrize("inference", [torch.no_grad, torch.inference_mode, contextlib.nullcontext])
def test_every_mode_of_gradients(inference, tmp_path: Path) -> None:
    net, expected = half_on_disk(tmp_path), trained().to(torch.bfloat16)(TOKENS)
    for _ in range(2):
        with inference():
            assert torch.equal(net(TOKENS), expected)


@pytest.mark.parametrize("where", ["cpu", "disk"])
def test_adapters_are_trained_on_an_offloaded_base(where: str, tmp_path: Path) -> None:
    class Adapted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.base = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)).requires_grad_(False)
            self.adapters = nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4)])

        def forward(self, value: torch.Tensor) -> torch.Tensor:
            for layer, adapter in zip(self.base, self.adapters, strict=True):
                value = layer(value) + adapter(value)
            return value

    plain, offloaded = Adapted(), Adapted()
    if where == "cpu":
        cpu_offload(offloaded.base)
    else:
        disk_offload(offloaded.base, tmp_path)
    for model in (plain, offloaded):
        optimizer = torch.optim.SGD(model.adapters.parameters(), lr=0.1)
        for _ in range(3):
            model(torch.ones(2, 4)).square().sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    expected = plain.adapters.state_dict()
    assert all(torch.equal(value, expected[name]) for name, value in offloaded.adapters.state_dict().items())


def test_an_error_in_a_forward_leaves_nothing_in_use(tmp_path: Path) -> None:
    net = half_on_disk(tmp_path)
    with pytest.raises(RuntimeError, match="dtype"):
        net.layers[0](torch.ones(1, 4))
    with pytest.raises(IndexError):
        net(TOKENS + 100)
    entries = net.embed._hf_hook.weights_map.dataset.engine._prefetchers[CPU]._entries
    assert [entry.users for entry in entries.values()] == [0] * len(entries)
    assert torch.equal(net(TOKENS), trained().to(torch.bfloat16)(TOKENS))


def test_requiring_gradients_can_change_between_forwards_without_them() -> None:
    layer, given = nn.Linear(4, 4), torch.ones(1, 4)
    cpu_offload(layer)
    for requires in (True, False, True):
        layer.requires_grad_(requires)
        with torch.no_grad():
            assert not layer(given).requires_grad
        assert layer(given).requires_grad is requires


def test_weights_in_memory_are_not_copied() -> None:
    net = trained()
    weight = net.layers[0].weight
    cpu_offload(net)
    loader = net.layers[0]._hf_hook.weights_map.dataset
    assert loader.onload(("layers.0.weight",), CPU)[0].data_ptr() == weight.data_ptr()
    assert loader.keeps(("layers.0.weight",))
    assert not loader.engine._prefetchers


class Recorded:
    """A device module with streams and events that write down what is asked of them."""

    def __init__(self) -> None:
        self.calls: list = []
        module = self

        class Event:
            def record(self, stream: object) -> None:
                module.calls.append(("record", stream))

            def synchronize(self) -> None:
                module.calls.append(("synchronize", self))

        class Stream:
            def __init__(self, device: torch.device | None = None) -> None:
                self.device = device

            def wait_event(self, event: object) -> None:
                module.calls.append(("wait", self, event))

        self.Event, self.Stream = Event, Stream
        self.current = Stream()

    @contextlib.contextmanager
    def stream(self, stream: object):
        self.calls.append(("enter", stream))
        yield
        self.calls.append(("leave", stream))

    def current_stream(self, device: torch.device) -> object:
        return self.current


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> Recorded:
    module = Recorded()
    monkeypatch.setattr(
        torch.Tensor, "record_stream", lambda tensor, stream: module.calls.append(("keep", stream)), raising=False
    )
    return module


def test_copies_are_queued_beside_and_waited_for_on_the_device(recorded: Recorded) -> None:
    side = Side(CPU, recorded)
    copies, end = side.start([torch.ones(2), torch.ones(1)], [torch.float64, torch.float32])
    assert [copy.dtype for copy in copies] == [torch.float64, torch.float32]
    assert recorded.calls == [("enter", side.stream), ("record", side.stream), ("leave", side.stream)]
    recorded.calls.clear()
    side.use(copies, end)
    assert recorded.calls == [("wait", recorded.current, end), ("keep", recorded.current), ("keep", recorded.current)]
    side.finish(end)
    assert recorded.calls[-1] == ("synchronize", end)


def test_a_staging_buffer_is_filled_again_when_its_copies_have_ended(
    recorded: Recorded, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(engine, "Buffer", lambda pinned: Buffer())  # there is nothing to lock pages for
    offload_state_dict(tmp_path, {"a": torch.arange(3.0), "b": torch.tensor([7, 8])})
    weights = OffloadedWeightsLoader(state_dict={"c": torch.ones(2)}, save_folder=tmp_path)
    bringer = Bringer(weights, Side(CPU, recorded))
    first, end = bringer(("a", "b", "c"))
    assert [each.tolist() for each in first] == [[0, 1, 2], [7, 8], [1, 1]]
    recorded.calls.clear()
    bringer(("b",))
    assert recorded.calls[0] == ("synchronize", end)
    assert recorded.calls[1][0] == "enter"


def test_a_model_runs_over_streams_with_a_buffer_per_reader(
    recorded: Recorded, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    buffers: list[Buffer] = []

    def unlocked(pinned: bool) -> Buffer:
        assert pinned
        buffers.append(Buffer())
        return buffers[-1]

    monkeypatch.setattr(engine, "Buffer", unlocked)
    monkeypatch.setattr(engine, "copies_to", lambda device: Side(CPU, recorded))
    net = half_on_disk(tmp_path, OffloadSettings(cache_size="1KB", readers=2))
    expected = trained().to(torch.bfloat16)(TOKENS)
    for _ in range(4):
        assert torch.equal(net(TOKENS), expected)
    waits = [call for call in recorded.calls if call[0] == "wait"]
    assert len(waits) == 4 * len(PARTS)
    assert {call[1] for call in waits} == {recorded.current}, "what computes waits, on the device"
    assert 1 <= len(buffers) <= 2
    largest = max(sum(each.nbytes for each in part.state_dict().values()) for part in trained().children())
    assert all(buffer._bytes.numel() <= largest + 64 * 5 for buffer in buffers)


def test_devices_with_and_without_streams(monkeypatch: pytest.MonkeyPatch, recorded: Recorded) -> None:
    assert isinstance(copies_to(CPU), Plain)
    assert isinstance(copies_to(torch.device("meta")), Plain)
    monkeypatch.setattr(torch, "get_device_module", lambda device: recorded)
    found = copies_to(torch.device("cuda", 1))
    assert isinstance(found, Side)
    assert found.stream.device == torch.device("cuda", 1)
    monkeypatch.setattr(torch, "get_device_module", lambda device: torch)
    monkeypatch.delattr(torch, "Stream")
    assert isinstance(copies_to(torch.device("cuda")), Plain)


@pytest.mark.parametrize(
    ("settings", "environment", "room"),
    [
        ({}, {}, 2**26),
        ({"cache_size": "1GiB"}, {}, 2**30),
        ({"cache_size": 5}, {"ACCELERATE_OFFLOAD_CACHE": "1GB"}, 5),
        ({}, {"ACCELERATE_OFFLOAD_CACHE": "1GB"}, 10**9),
        ({"prefetch": False}, {}, 0),
        ({}, {"ACCELERATE_OFFLOAD_PREFETCH": "0"}, 0),
        ({"prefetch": True}, {"ACCELERATE_OFFLOAD_PREFETCH": "0"}, 2**26),
    ],
    ids=str,
)
def test_settings(settings: dict, environment: dict, room: int, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert OffloadSettings(**settings).room(10) == room


def test_settings_that_make_no_sense() -> None:
    with pytest.raises(ValueError, match="without a reader"):
        OffloadSettings(readers=0)
    with pytest.raises(ValueError, match="can't be read as one"):
        OffloadSettings(cache_size="much")


def test_the_room_grows_with_the_largest_part() -> None:
    weights = OffloadedWeightsLoader(state_dict={"a": torch.ones(2**25), "b": torch.ones(2)})
    one = Engine(weights, OffloadSettings())
    assert one._room() == 2**26
    one.onload(("b",), torch.device("meta"))
    one.onload(("a",), torch.device("meta"))
    assert one._prefetchers[torch.device("meta")].room == 2**27


def test_the_system_is_asked_to_have_what_follows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "SMALL", 1)
    net = disk_offload(trained(), tmp_path)
    wanted: list[list[str]] = []
    loader = net.embed._hf_hook.weights_map.dataset
    monkeypatch.setattr(
        loader.engine._read_ahead, "want", lambda spans: wanted.append([Path(span.file).stem for span in spans])
    )
    net(TOKENS)
    assert all(not each for each in wanted)
    wanted.clear()
    net(TOKENS)
    net(TOKENS)
    assert wanted[-4][:2] == ["layers.1.weight", "layers.1.bias"]
    assert wanted[-1][0] == "embed.weight"
    off = disk_offload(trained(), tmp_path / "off", offload_settings=OffloadSettings(prefetch=False))
    assert off.embed._hf_hook.weights_map.dataset.engine._read_ahead is None
    assert torch.equal(off(TOKENS), trained()(TOKENS))


def test_pieces_that_are_not_in_memory_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "data").write_bytes(bytes(100))
    span, read = Span(str(tmp_path / "data"), 10, torch.uint8, (70,)), []
    real = os.preadv

    def preadv(descriptor: int, buffers: list, offset: int, flags: int = 0) -> int:
        if flags:
            if offset == 40:
                raise BlockingIOError
            return 1
        read.append((offset, len(buffers[0])))
        return real(descriptor, buffers, offset)

    monkeypatch.setattr(os, "preadv", preadv)
    assert bring_in(span, bytearray(30)) == 1
    assert read == [(40, 30)]
    assert bring_in(Span(str(tmp_path / "gone"), 0, torch.uint8, (1,)), bytearray(1)) == 0


def test_looking_ahead_becomes_rare_while_nothing_is_missing(tmp_path: Path) -> None:
    (tmp_path / "data").write_bytes(bytes(100))
    spans = [Span(str(tmp_path / "data"), start, torch.uint8, (10,)) for start in range(0, 100, 10)]
    ahead = ReadAhead(limit=35)
    ahead._idle_looks = 10**6
    assert sum(ahead.due() for _ in range(640)) == 10
    ahead._idle_looks = 0
    assert all(ahead.due() for _ in range(5))
    started: list = []
    ahead._start = lambda: started.append(True)
    ahead.want(spans)
    assert len(ahead._wanted.get()) == 3
    ahead.want([])
    assert started == [True]
    for _ in range(5):
        ahead.want(spans)
    assert ahead._wanted.qsize() == 2


def test_the_thread_counts_looks_that_find_everything(tmp_path: Path) -> None:
    (tmp_path / "data").write_bytes(bytes(100))
    ahead = ReadAhead(limit=100)
    looked = threading.Event()

    class Looked(list):
        def __iter__(self):
            looked.set()
            return super().__iter__()

    ahead._start()
    ahead._wanted.put(Looked([Span(str(tmp_path / "data"), 0, torch.uint8, (10,))]))
    assert looked.wait(timeout=20)
    assert ahead._thread.daemon
