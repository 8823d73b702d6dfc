"""Files are read in one way or another with the same result, and pages are copied before anybody writes to them."""

from __future__ import annotations

import random
import sys
import threading
import weakref

import pytest
import torch

from accelerate.checkpointing import reading
from accelerate.checkpointing.durable import BLOCK, Checksum, FileFact
from accelerate.checkpointing.reading import SEGMENT, copy_ahead, fact_of, fill, fill_from, in_threads

LINUX = pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells whether pages could be brought in")


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("length", [0, 100, BLOCK, SEGMENT - 1, SEGMENT, 2 * SEGMENT + BLOCK + 7])
def test_a_file_has_one_checksum_however_it_is_read(tmp_path, length, threads):
    data = random.Random(length).randbytes(length)
    (tmp_path / "file").write_bytes(data)
    checksum = Checksum()
    checksum.update(data)
    assert fact_of(tmp_path / "file", threads) == FileFact(length, checksum.text())


def test_work_is_done_in_several_threads_and_fails_in_any(monkeypatch):
    meeting, seen = threading.Barrier(3), set()

    def work():
        meeting.wait(timeout=60)
        seen.add(threading.get_ident())
        if len(seen) == 3:
            raise KeyError("last")

    with pytest.raises(KeyError, match="last"):
        in_threads(work, 3)
    assert len(seen) == 3


class Reluctant:
    """A file that gives out three bytes at most."""

    left = b"0123456789"

    def readinto(self, buffer):
        count = min(3, len(buffer), len(self.left))
        buffer[:count], self.left = self.left[:count], self.left[count:]
        return count


def test_a_buffer_is_filled_however_the_bytes_come():
    file, buffer = Reluctant(), memoryview(bytearray(8))
    assert [fill(file, buffer), bytes(buffer)] == [8, b"01234567"]
    assert fill(file, buffer) == 2


@pytest.mark.parametrize("positioned", [True, False])
def test_a_buffer_is_filled_from_a_place(tmp_path, monkeypatch, positioned):
    if not positioned:
        monkeypatch.delattr(reading.os, "preadv", raising=False)
    (tmp_path / "file").write_bytes(b"0123456789")
    buffer = memoryview(bytearray(4))
    with open(tmp_path / "file", "rb", buffering=0) as file:
        assert [fill_from(file, 3, buffer), bytes(buffer)] == [4, b"3456"]
        assert fill_from(file, 8, buffer) == 2
        assert file.tell() == 0


@LINUX
def test_mapped_pages_are_copied_ahead_and_the_file_stays(tmp_path):
    torch.save({"kept": torch.arange(2**20), "dropped": torch.zeros(2**20), "none": torch.zeros(0)}, tmp_path / "file")
    before = (tmp_path / "file").read_bytes()
    mapped = torch.load(tmp_path / "file", mmap=True)
    copy_ahead([weakref.ref(mapped.pop(name)) for name in ("dropped", "none")] + [weakref.ref(mapped["kept"])])
    for thread in threading.enumerate():
        if thread.name == "accelerate-copy-ahead":
            thread.join()
    assert private_kilobytes(mapped["kept"]) >= 8 * 2**10
    assert mapped["kept"].equal(torch.arange(2**20))
    mapped["kept"].zero_()
    assert (tmp_path / "file").read_bytes() == before


def private_kilobytes(tensor):
    """Return how much of the mapping that a tensor lies in this process has to itself."""
    inside, address = False, tensor.data_ptr()
    with open("/proc/self/smaps") as file:
        for line in file:
            first = line.split()[0]
            if "-" in first and not first.endswith(":"):
                begin, end = (int(part, 16) for part in first.split("-"))
                inside = begin <= address < end
            elif inside and first == "Private_Dirty:":
                return int(line.split()[1])
    return 0
