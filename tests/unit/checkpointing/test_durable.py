"""Bytes on the disk: checksums that see every damage, files and folders that are there completely or not at all."""

from __future__ import annotations

import errno
import random
import threading
from contextlib import nullcontext

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from accelerate.checkpointing import durable
from accelerate.checkpointing.durable import BLOCK, Checksum, FileFact, Sink, beside_training
from accelerate.checkpointing.reading import fact_of


def checksum(data: bytes, *cuts: int) -> str:
    """Return the checksum of `data`, taken in piece by piece."""
    found, begin = Checksum(), 0
    for cut in (*sorted(cuts), len(data)):
        found.update(data[begin:cut])
        begin = cut
    return found.text()


def by_definition(data: bytes) -> str:
    """Return the checksum as its docstring describes it, word by word."""

    def weight(position):
        bits = (position * 0x9E3779B97F4A7C15) % 2**64
        bits = ((bits ^ (bits >> 30)) * 0xBF58476D1CE4E5B9) % 2**64
        bits = ((bits ^ (bits >> 27)) * 0x94D049BB133111EB) % 2**64
        return (bits ^ (bits >> 31)) | 1

    chain = 0
    for begin in range(0, len(data), BLOCK):
        block = data[begin : begin + BLOCK]
        words = [int.from_bytes(block[at : at + 8], "little") for at in range(0, len(block), 8)]
        chain = chain * 0x9E3779B97F4A7C15 + sum(word * weight(at) for at, word in enumerate(words, 1))
    return f"dot64:{(chain * 0x9E3779B97F4A7C15 + len(data)) % 2**64:016x}"


LENGTHS = [0, 1, 7, 8, 9, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK, 2 * BLOCK + 12345]


@pytest.mark.parametrize("length", LENGTHS)
def test_a_checksum_does_not_depend_on_how_the_bytes_come(length):
    data = random.Random(length).randbytes(length)
    for seed in range(5):
        cuts = random.Random(seed).sample(range(length + 1), k=min(length, 4))
        assert checksum(data, *cuts) == checksum(data)


@settings(max_examples=60)
@given(st.binary(min_size=1, max_size=200), st.data())
def test_a_changed_byte_always_shows(data, draw):
    place = draw.draw(st.integers(0, len(data) - 1))
    flipped = draw.draw(st.integers(1, 255))
    changed = bytearray(data)
    changed[place] ^= flipped
    assert checksum(bytes(changed)) != checksum(data)


def test_damage_that_keeps_sums_shows():
    """Words that change places, pages that turn into zeros, blocks in another order, zeros at the end."""
    words = random.Random(0).randbytes(3 * BLOCK)
    swapped = words[8:16] + words[:8] + words[16:]
    zeroed = words[:4096] + bytes(4096) + words[8192:]
    turned = words[BLOCK:] + words[:BLOCK]
    ones = torch.ones(2 * BLOCK, dtype=torch.float32).numpy().tobytes()
    zeroed_ones = ones[:4096] + bytes(4096) + ones[8192:]
    assert len({checksum(each) for each in (words, swapped, zeroed, turned, words + b"\0", words[:-1])}) == 6
    assert checksum(ones) != checksum(zeroed_ones)
    assert checksum(bytes(8)) != checksum(bytes(16))


def test_the_algorithm_stays_as_it_is():
    """What one release wrote, every later one has to recognise."""
    data = bytes(range(256)) * 1025
    assert checksum(b"") == "dot64:0000000000000000"
    assert checksum(data) == "dot64:f13cc8a9a5daa130" == by_definition(data)
    assert checksum(b"abc") == by_definition(b"abc")


def test_a_sink_says_what_it_wrote(tmp_path):
    sink = Sink(tmp_path / "file")
    sink.write(b"abc")
    sink.write(memoryview(torch.arange(100000).numpy()))
    fact = sink.finish()
    assert fact == fact_of(tmp_path / "file")
    assert fact.size == 3 + 800000 == (tmp_path / "file").stat().st_size


def test_a_sink_takes_what_torch_saves(tmp_path):
    sink = Sink(tmp_path / "file")
    torch.save({"weight": torch.arange(1000.0), "lr": 0.1}, sink)
    assert sink.finish() == fact_of(tmp_path / "file")
    assert torch.load(tmp_path / "file")["weight"].sum() == 499500


def test_a_sink_never_writes_over_a_file(tmp_path):
    (tmp_path / "file").write_text("old")
    with pytest.raises(FileExistsError):
        Sink(tmp_path / "file")
    assert (tmp_path / "file").read_text() == "old"


def test_flushing_begins_while_more_is_written(tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(durable, "begin_flush", lambda descriptor, start, end: asked.append((start, end)))
    sink = Sink(tmp_path / "file")
    sink.write(b"header")
    sink.write(bytes(2 * durable.STRETCH))
    assert sink.finish() == fact_of(tmp_path / "file")
    assert asked == [(0, durable.STRETCH), (durable.STRETCH, 2 * durable.STRETCH)]


def hurried():
    event = threading.Event()
    event.set()
    return event


WAYS = {"through memory": nullcontext, "past it": lambda: beside_training(hurried())}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("size", [0, 1, 4096, durable.STRETCH - 1, durable.STRETCH, 2 * durable.STRETCH + 12345])
def test_a_file_is_the_same_however_it_is_written(tmp_path, way, size):
    data = random.Random(size).randbytes(size)
    with WAYS[way]():
        sink = Sink(tmp_path / "file")
    for begin in range(0, size, 5 * 2**20 + 7):
        sink.write(data[begin : begin + 5 * 2**20 + 7])
    assert sink.tell() == size
    assert sink.finish() == FileFact(size, checksum(data))
    assert (tmp_path / "file").read_bytes() == data


@pytest.mark.parametrize("taken", [0, 4096, 100])
def test_a_file_is_complete_when_a_system_stops_writing_directly(tmp_path, monkeypatch, taken):
    """As some do at once, and all do once less than a sector was written."""
    data, real = random.Random(1).randbytes(2 * durable.STRETCH + 5), durable.write_all
    said = []

    def once(file, view):
        if not said:
            said.append(file.write(view[:taken]) if taken else 0)
            raise OSError(errno.EINVAL, "not like this")
        real(file, view)

    with beside_training(hurried()):
        sink = Sink(tmp_path / "file")
    durable.write_directly(sink._file.fileno(), False)
    monkeypatch.setattr(durable, "write_all", once)
    sink.write(data)
    assert sink.finish() == FileFact(len(data), checksum(data))
    assert (tmp_path / "file").read_bytes() == data
    assert said == [taken]


def test_the_disk_is_left_alone_until_somebody_waits(tmp_path):
    class Hurry(threading.Event):
        pauses: list[float] = []

        def wait(self, timeout=None):
            self.pauses.append(timeout)
            return True

    hurry = Hurry()
    with beside_training(hurry):
        sink = Sink(tmp_path / "file")
    if isinstance(sink._stretches, durable.Through):
        pytest.skip("this file system takes no direct writes")
    sink.write(bytes(2 * durable.STRETCH + 1))
    sink.finish()
    assert len(hurry.pauses) == 2
    assert all(pause > 0 for pause in hurry.pauses)


def test_a_full_disk_is_an_error_in_both_ways(tmp_path, monkeypatch):
    def full(file, view):
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(durable, "write_all", full)
    for name, way in WAYS.items():
        with way():
            sink = Sink(tmp_path / name)
        with pytest.raises(OSError, match="full"):
            sink.write(bytes(durable.STRETCH))
        sink.close()


def test_a_system_that_cannot_write_directly_is_not_asked(tmp_path, monkeypatch):
    monkeypatch.delattr(durable.os, "O_DIRECT", raising=False)
    with beside_training(hurried()), open(tmp_path / "file", "wb") as file:
        assert not durable.write_directly(file.fileno(), True)


def test_what_a_system_takes_in_parts_is_written_completely():
    class Reluctant:
        taken = b""

        def write(self, view):
            self.taken += bytes(view[:3])
            return min(3, len(view))

    file = Reluctant()
    durable.write_all(file, memoryview(b"0123456789"))
    assert file.taken == b"0123456789"


def test_removing_a_link_to_a_folder_leaves_the_folder(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "file").touch()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    durable.remove_folder(tmp_path / "link")
    assert [path.name for path in tmp_path.iterdir()] == ["real"]
    assert (tmp_path / "real" / "file").exists()


def test_a_sink_says_where_it_is(tmp_path):
    sink = Sink(tmp_path / "file")
    assert [sink.tell(), sink.write(b"abc"), sink.tell()] == [0, 3, 3]
    sink.close()
