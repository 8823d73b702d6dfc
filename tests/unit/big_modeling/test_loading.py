"""Loading checkpoints: each tensor in its place once, nothing copied that can be mapped, and refusals that name all."""

from __future__ import annotations

import json
import logging
import struct
import threading
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from accelerate.big_modeling import reading
from accelerate.big_modeling.checkpoint_file import open_checkpoint
from accelerate.big_modeling.loading import load_checkpoint_in_model, load_state_dict
from accelerate.big_modeling.meta import init_empty_weights
from accelerate.big_modeling.spans import CHUNK, Buffer, Mappings, Span, read_into
from tests.unit.big_modeling.checkpoints import PARTS, TOKENS, Net, kinds, save, save_sharded, tensors_of, trained


def empty(**options) -> Net:
    """Return a model without memory, in evaluation mode."""
    with init_empty_weights():
        return Net(**options).eval()


def saved(path: Path, kind: str) -> Path:
    """Save the model of seed 0 in some form, and return what to load."""
    if kind == "folder":
        return save_sharded(trained(), path)
    if kind == "index":
        return save_sharded(trained(), path) / "model.safetensors.index.json"
    if kind == "old format":
        torch.save(dict(trained().state_dict()), path / "m.bin", _use_new_zipfile_serialization=False)
        return path / "m.bin"
    return save(trained(), path / kind)


@pytest.mark.parametrize("kind", ["m.safetensors", "m.bin", "m.pt", "folder", "index", "old format"])
@pytest.mark.parametrize("device_map", [None, {"": "cpu"}], ids=["no map", "map"])
@pytest.mark.parametrize("build", [empty, lambda: trained(1)], ids=["meta", "memory"])
def test_every_format_into_every_model(kind: str, device_map: dict | None, build, tmp_path: Path) -> None:
    net = build()
    load_checkpoint_in_model(net, saved(tmp_path, kind), device_map=device_map)
    assert torch.equal(net(TOKENS), trained()(TOKENS))
    assert net.head.weight is net.embed.weight
    assert net.norm.num_batches_tracked == 70000


def test_a_folder_with_one_file_of_a_usual_name(tmp_path: Path) -> None:
    save(trained(), tmp_path / "model.safetensors")
    net = empty()
    load_checkpoint_in_model(net, tmp_path)
    assert torch.equal(net(TOKENS), trained()(TOKENS))
    save(trained(1), tmp_path / "pytorch_model.bin")
    load_checkpoint_in_model(net, tmp_path)
    assert torch.equal(net(TOKENS), trained(1)(TOKENS))


@pytest.mark.parametrize("device_map", [None, {"": "cpu"}])
def test_what_has_memory_is_read_into_it(device_map: dict | None, tmp_path: Path) -> None:
    net = trained(1)
    weight, address = net.layers[0].weight, net.layers[0].weight.data_ptr()
    load_checkpoint_in_model(net, save(trained(), tmp_path / "m.safetensors"), device_map=device_map)
    assert net.layers[0].weight is weight
    assert weight.data_ptr() == address


def test_what_has_none_is_mapped_and_writing_to_it_stays_private(tmp_path: Path) -> None:
    path = save(trained(), tmp_path / "m.safetensors")
    net, before = empty(), path.read_bytes()
    load_checkpoint_in_model(net, path)
    twin = empty()
    load_checkpoint_in_model(twin, path)
    with torch.no_grad():
        net.layers[0].weight.add_(1)
    assert torch.equal(twin(TOKENS), trained()(TOKENS))
    assert path.read_bytes() == before
    path.unlink()
    assert torch.equal(twin(TOKENS), trained()(TOKENS))


def test_mapping_can_be_turned_off(tmp_path: Path) -> None:
    path = save(trained(), tmp_path / "m.safetensors")
    net = empty()
    load_checkpoint_in_model(net, path, memory_map=False)
    path.write_bytes(b"")
    assert torch.equal(net(TOKENS), trained()(TOKENS))


@pytest.mark.parametrize("build", [empty, lambda: trained(1)], ids=["meta", "memory"])
@pytest.mark.parametrize("device_map", [None, {"": "cpu"}], ids=["no map", "map"])
@pytest.mark.parametrize("dtype", [torch.float16, "bfloat16"])
def test_floats_are_converted_and_integers_are_not(build, device_map, dtype, tmp_path: Path) -> None:
    net = build()
    load_checkpoint_in_model(net, save(trained(), tmp_path / "m.safetensors"), device_map=device_map, dtype=dtype)
    wanted = getattr(torch, str(dtype).removeprefix("torch."))
    assert {parameter.dtype for parameter in net.parameters()} == {wanted}
    assert net.norm.running_mean.dtype is wanted
    assert net.norm.num_batches_tracked.dtype is torch.int64
    assert net.norm.num_batches_tracked == 70000
    assert torch.equal(net.layers[0].weight, trained().layers[0].weight.to(wanted))


def test_without_a_dtype_the_model_decides(tmp_path: Path) -> None:
    net = empty(dtype=torch.float64)
    load_checkpoint_in_model(net, save(trained(), tmp_path / "m.safetensors"))
    assert net.embed.weight.dtype is torch.float64


def test_named_modules_stay_in_fp32(tmp_path: Path) -> None:
    path = save(trained(), tmp_path / "m.safetensors")
    net = empty()
    load_checkpoint_in_model(net, path, dtype="float16", keep_in_fp32_modules=["norm", "1"])
    assert net.norm.weight.dtype is net.layers[1].weight.dtype is torch.float32
    assert net.layers[0].weight.dtype is torch.float16
    with pytest.warns(UserWarning, match="float16 only"):
        load_checkpoint_in_model(net, path, dtype="bfloat16", keep_in_fp32_modules=["norm"])


@pytest.mark.parametrize("kind", ["m.safetensors", "m.bin"])
@pytest.mark.parametrize("offload_buffers", [False, True])
def test_the_disk(kind: str, offload_buffers: bool, tmp_path: Path) -> None:
    folder, net = tmp_path / "offload", empty()
    device_map = {**dict.fromkeys(PARTS, "disk"), "embed": "cpu", "layers.0": "cpu"}
    load_checkpoint_in_model(
        net, saved(tmp_path, kind), device_map, folder, dtype="float16", offload_buffers=offload_buffers
    )
    assert kinds(net)["layers.1.weight"] == kinds(net)["norm.weight"] == "meta"
    assert net.layers[1].weight.dtype is torch.float16
    assert kinds(net)["norm.running_mean"] == ("meta" if offload_buffers else "cpu")
    assert kinds(net)["shift"] == "cpu"
    index = json.loads((folder / "index.json").read_text())
    assert {"layers.1.weight", "head.weight"} <= set(index)
    assert "embed.weight" not in index
    assert index["layers.1.weight"]["dtype"] == "float16"
    written = sorted(path.name for path in folder.glob("*.dat"))
    assert bool(written) is (kind == "m.bin")
    if kind == "m.safetensors":
        assert index["head.weight"]["weight_name"] == "embed.weight"


def test_weights_on_the_disk_keep_one_placeholder_per_parameter(tmp_path: Path) -> None:
    net = trained(1)
    load_checkpoint_in_model(
        net, save(trained(), tmp_path / "m.bin"), {"": "disk"}, tmp_path / "offload", dtype=torch.float16
    )
    assert net.head.weight is net.embed.weight
    assert net.embed.weight.is_meta


def test_what_does_not_fit_is_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    tensors = tensors_of(trained())
    del tensors["layers.0.bias"], tensors["norm.weight"]
    save_file({**tensors, "other": torch.ones(1)}, tmp_path / "m.safetensors", metadata={"format": "pt"})
    net = trained(1)
    before = net(TOKENS)
    with pytest.raises(ValueError, match=r"missing: layers.0.bias, norm.weight; unexpected: other\n"):
        load_checkpoint_in_model(net, tmp_path / "m.safetensors", strict=True)
    assert torch.equal(net(TOKENS), before)
    with caplog.at_level(logging.WARNING):
        load_checkpoint_in_model(net, tmp_path / "m.safetensors")
    assert "left out: other" in caplog.text
    assert "stay as they are: layers.0.bias, norm.weight." in caplog.text
    assert {record.name for record in caplog.records} == {"accelerate.utils.modeling"}


def test_wrong_shapes_are_refused_all_together_before_anything_is_loaded(tmp_path: Path) -> None:
    tensors = {**tensors_of(trained()), "layers.0.bias": torch.ones(3), "norm.bias": torch.ones(5)}
    save_file(tensors, tmp_path / "m.safetensors", metadata={"format": "pt"})
    net = trained(1)
    before = net(TOKENS)
    with pytest.raises(ValueError, match=r"layers.0.bias has shape \(3,\) and should have \(4,\); norm.bias has"):
        load_checkpoint_in_model(net, tmp_path / "m.safetensors", device_map={"": "cpu"})
    assert torch.equal(net(TOKENS), before)


def header(path: Path, content: bytes, data: bytes = b"") -> Path:
    """Write a safetensors file by hand."""
    path.write_bytes(struct.pack("<Q", len(content)) + content + data)
    return path


@pytest.mark.parametrize(
    ("write", "said"),
    [
        (lambda path: path.write_bytes(save(trained(), path).read_bytes()[:-5]), "it is truncated"),
        (lambda path: path.write_bytes(b"hello"), "does not fit into its 5 bytes"),
        (lambda path: path.write_bytes(b"\xff" * 64), "does not fit into its 64 bytes"),
        (lambda path: header(path, b"not json"), "can't be read"),
        (lambda path: header(path, b"[1]"), "can't be read"),
        (
            lambda path: header(path, b'{"a": {"dtype": "F99", "shape": [1], "data_offsets": [0, 4]}}'),
            "F99 is not known",
        ),
        (
            lambda path: header(path, b'{"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 8]}}', b"12345678"),
            "8 bytes for a tensor of 4",
        ),
        (lambda path: save_file({"a": torch.ones(1)}, path, metadata={"format": "tf"}), "it was written for 'tf'"),
    ],
)
def test_files_that_are_no_checkpoints(write, said: str, tmp_path: Path) -> None:
    write(tmp_path / "m.safetensors")
    with pytest.raises(ValueError, match=said):
        load_checkpoint_in_model(trained(1), tmp_path / "m.safetensors")


def test_a_file_that_is_written_again_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    for content in ({"a": torch.zeros(2)}, {"b": torch.ones(2)}, {"b": torch.ones(3)}):
        save_file(content, path, metadata={"format": "pt"})
        read = load_state_dict(path)
        assert read.keys() == content.keys()
        assert all(torch.equal(read[name], content[name]) for name in content)


def test_files_of_torch_that_are_no_checkpoints(tmp_path: Path) -> None:
    path = save(trained(), tmp_path / "m.bin")
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(ValueError, match="download or write the file again"):
        load_checkpoint_in_model(trained(1), path)
    torch.save({"weight": torch.ones(1), "code": Path}, path)
    with pytest.raises(ValueError, match="nothing but tensors"):
        load_checkpoint_in_model(trained(1), path)


def test_places_without_a_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no such file or folder"):
        load_checkpoint_in_model(trained(), tmp_path / "missing")
    with pytest.raises(ValueError, match="is not a folder containing"):
        load_checkpoint_in_model(trained(), tmp_path)
    for name in ("a", "b"):
        (tmp_path / f"{name}.index.json").write_text('{"weight_map": {"w": "x.safetensors"}}')
    with pytest.raises(ValueError, match="more than one `.index.json` file: a.index.json, b.index.json"):
        load_checkpoint_in_model(trained(), tmp_path)
    with pytest.raises(ValueError, match="not there: x.safetensors"):
        load_checkpoint_in_model(trained(), tmp_path / "a.index.json")


@pytest.mark.parametrize(
    ("device_map", "said"),
    [
        ({"": "disk"}, "needs a place for the index"),
        ({"embed": "cpu"}, "has no entry for"),
        ({"": "gpu"}, "torch knows no device of that name"),
        ({"": "dsk"}, "Did you mean 'disk'"),
    ],
    ids=str,
)
def test_maps_that_cannot_be_followed(device_map: dict, said: str, tmp_path: Path) -> None:
    path, net = save(trained(), tmp_path / "m.safetensors"), trained(1)
    before = net(TOKENS)
    with pytest.raises(ValueError, match=said):
        load_checkpoint_in_model(net, path, device_map=device_map)
    assert torch.equal(net(TOKENS), before)


def test_files_without_metadata_are_believed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    save_file(tensors_of(trained()), tmp_path / "m.safetensors")
    net = empty()
    load_checkpoint_in_model(net, tmp_path / "m.safetensors")
    assert "doesn't say which framework wrote it" in caplog.text
    assert torch.equal(net(TOKENS), trained()(TOKENS))


def test_options_for_sharded_models(tmp_path: Path) -> None:
    path = save(trained(), tmp_path / "m.safetensors")
    with pytest.raises(RuntimeError, match="without a process group"):
        load_checkpoint_in_model(trained(1), path, broadcast_from_rank0=True)
    with pytest.warns(UserWarning, match="no effect on a model that is not sharded"):
        load_checkpoint_in_model(trained(1), path, full_state_dict=False)


def test_a_state_dict_by_itself(tmp_path: Path) -> None:
    path = save(trained(), tmp_path / "m.safetensors")
    tensors = load_state_dict(path)
    assert tensors.keys() == tensors_of(trained()).keys()
    assert all(torch.equal(tensors[name], value) for name, value in tensors_of(trained()).items())
    devices = load_state_dict(path, device_map={"embed": "disk", "norm": "meta"})
    assert devices["embed.weight"].device.type == devices["layers.0.weight"].device.type == "cpu"
    assert devices["norm.weight"].device.type == "meta"


def test_a_tensor_at_an_odd_place_in_its_file_is_found(tmp_path: Path) -> None:
    entries = {
        "__metadata__": {"format": "pt"},
        "a": {"dtype": "U8", "shape": [1], "data_offsets": [0, 1]},
        "b": {"dtype": "F32", "shape": [1], "data_offsets": [1, 5]},
        "none": {"dtype": "F32", "shape": [0], "data_offsets": [5, 5]},
    }
    path = header(tmp_path / "m.safetensors", json.dumps(entries).encode(), b"\x07" + struct.pack("<f", 2.5))
    tensors = load_state_dict(path)
    assert tensors["a"].tolist() == [7]
    assert tensors["b"].tolist() == [2.5]
    assert tensors["none"].shape == (0,)
    assert open_checkpoint(path).names() == ["a", "b", "none"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_large_tensors_are_read_piece_by_piece(dtype: torch.dtype, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr("accelerate.big_modeling.spans.CHUNK", 1000)
    data = torch.arange(2000.0)
    (tmp_path / "data").write_bytes(b"head" + data.numpy().tobytes())
    target, buffer = torch.empty(40, 50, dtype=dtype), Buffer()
    read_into(Span(str(tmp_path / "data"), 4, torch.float32, (40, 50)), target, buffer)
    assert torch.equal(target.flatten().float(), data)
    columns = torch.empty(50, 40).t()
    read_into(Span(str(tmp_path / "data"), 4, torch.float32, (40, 50)), columns, buffer)
    assert torch.equal(columns.flatten(), data)
    with pytest.raises(ValueError, match="truncated"):
        read_into(Span(str(tmp_path / "data"), 5, torch.float32, (40, 50)), target)
    with pytest.raises(ValueError, match="truncated"):
        Mappings().view(Span(str(tmp_path / "data"), 8, torch.float32, (40, 50)))
    assert CHUNK % 4096 == 0


def test_what_is_converted_passes_through_small_buffers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    buffers: list[Buffer] = []

    class Kept(Buffer):
        def __init__(self, pinned: bool) -> None:
            super().__init__(pinned)
            buffers.append(self)

    monkeypatch.setattr(reading, "Buffer", Kept)
    monkeypatch.setattr("accelerate.big_modeling.spans.PIECE", 256)
    content = {name: torch.randn(size, 30) for name, size in (("a", 40), ("b", 1), ("c", 77), ("none", 0))}
    content["number"] = torch.tensor(3.5)
    save_file(content, tmp_path / "m.safetensors", metadata={"format": "pt"})
    file = open_checkpoint(tmp_path / "m.safetensors")
    targets = {name: torch.empty(tensor.shape, dtype=torch.bfloat16) for name, tensor in content.items()}
    reading.read_all([(file, name, target) for name, target in targets.items()])
    assert all(torch.equal(targets[name], tensor.bfloat16()) for name, tensor in content.items())
    assert 0 < len(buffers) <= reading.MOST_READERS
    assert all(buffer._bytes.numel() <= 256 for buffer in buffers)


class Peak:
    """The most memory of its own, without pages of files, that this process has above what it had at first."""

    def __init__(self) -> None:
        self.bytes, self._stop = 0, threading.Event()

    def _own(self) -> int:
        status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
        return int(status["RssAnon"].split()[0]) * 1024

    def _watch(self) -> None:
        while not self._stop.wait(0.0002):
            self.bytes = max(self.bytes, self._own() - self._before)

    def __enter__(self) -> Peak:
        self._before = self._own()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        self._thread.join()
        self.bytes = max(self.bytes, self._own() - self._before)


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="only Linux tells memory of its own from files'")
@pytest.mark.parametrize(
    ("device_map", "dtype", "resident"),
    [
        ({"": "cpu"}, torch.float32, 1.0),
        ({"": "cpu"}, None, 0.0),
        ({"0": "cpu", "1": "disk", "2": "disk", "3": "disk"}, torch.float32, 0.25),
        (None, torch.float32, 1.0),
    ],
    ids=["converted", "mapped", "disk", "no map"],
)
def test_loading_takes_the_resident_part_and_no_second_copy(device_map, dtype, resident, tmp_path: Path) -> None:
    size = 2048
    weight_map = {f"{index}.weight": f"{index}.safetensors" for index in range(4)}
    for name, file in weight_map.items():
        save_file({name: torch.ones(size, size, dtype=torch.bfloat16)}, tmp_path / file, metadata={"format": "pt"})
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    with init_empty_weights():
        model = nn.Sequential(*(nn.Linear(size, size, bias=False, dtype=torch.bfloat16) for _ in range(4)))
    shard = size * size * 2
    with Peak() as peak:
        load_checkpoint_in_model(model, tmp_path, device_map=device_map, dtype=dtype, offload_folder=tmp_path / "off")
    assert peak.bytes <= resident * 4 * size * size * 4 + shard + 2**22
    assert not list(tmp_path.glob("off/*.dat"))


def test_an_error_in_one_reader_is_the_error_of_all(tmp_path: Path) -> None:
    file = open_checkpoint(save(trained(), tmp_path / "m.safetensors"))
    (tmp_path / "m.safetensors").write_bytes(b"")
    with pytest.raises(ValueError, match="truncated"):
        reading.read_all([(file, name, torch.empty(file.shape(name))) for name in file.names()])
    reading.read_all([])


def test_modules_that_are_in_a_model_twice(tmp_path: Path) -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Linear(2, 2)
            self.again = nn.Sequential(self.first)

    torch.manual_seed(0)
    model = Twice()
    torch.save(model.first.state_dict(), tmp_path / "m.bin")
    save_file({f"first.{name}": value for name, value in model.first.state_dict().items()}, tmp_path / "m.safetensors")
    with init_empty_weights():
        other = Twice()
    load_checkpoint_in_model(other, tmp_path / "m.safetensors", strict=True)
    assert torch.equal(other.again[0].weight, model.first.weight)
