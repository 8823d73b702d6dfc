"""Reading ahead: what is expected next, what stays within the room there is, and what goes first."""

from __future__ import annotations

import itertools
import os
import threading

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from accelerate.big_modeling.order import Order
from accelerate.big_modeling.prefetch import Prefetcher
from accelerate.big_modeling.streams import Plain

SIZE = 10


def expected(order: Order, count: int) -> list:
    return list(itertools.islice(order.following(), count))


def run(order: Order, parts: str) -> None:
    for part in parts:
        order.visit(part)


@pytest.mark.parametrize(
    ("parts", "following"),
    [
        ("", ""),
        ("a", ""),
        ("ab", ""),
        ("abcabca", "bcabca"),
        ("aabcaabca", "abcaab"),
        ("abcdabdabd", "abdabd"),
        ("abcdabdabcd", "abcdab"),
        ("xabcabcabc", "abcabc"),
    ],
)
def test_what_follows_is_learnt(parts: str, following: str) -> None:
    order = Order()
    run(order, parts)
    assert "".join(expected(order, 6)) == following


def test_each_thread_has_its_own_place() -> None:
    order = Order()
    run(order, "abcabca")
    thread = threading.Thread(target=run, args=(order, "abcb"))
    thread.start()
    thread.join(timeout=20)
    assert expected(order, 2) == ["b", "c"]


def test_when_parts_are_used_next() -> None:
    order = Order()
    run(order, "abcab")
    assert order.next_use("c") == order.next_use("never")
    run(order, "c")
    assert [order.next_use(part) for part in "abc"] == [7, 8, 9]


class Bringing:
    """Brings parts as tensors of their name, and writes down which; can be told to fail."""

    def __init__(self) -> None:
        self.brought: list[str] = []
        self.failing: list[BaseException] = []
        self.lock = threading.Lock()

    def __call__(self, part: str):
        with self.lock:
            self.brought.append(part)
            if self.failing:
                raise self.failing.pop(0)
        return [torch.tensor([ord(part)])], None

    def since(self, mark: int) -> str:
        with self.lock:
            return "".join(sorted(self.brought[mark:]))


def prefetcher(room: int, bringing: Bringing) -> Prefetcher:
    return Prefetcher(bringing, lambda part: SIZE, Plain(torch.device("cpu")), room, readers=1)


def forward(prefetch: Prefetcher, parts: str) -> None:
    """Use parts one after the other, and check that each is what it should be."""
    for part in parts:
        assert prefetch.get(part)[0].item() == ord(part)
        prefetch.done(part)


def settled(prefetch: Prefetcher) -> str:
    """Return the parts that are on the device or on their way, once they are there."""
    for entry in list(prefetch._entries.values()):
        entry.future.result()
    return "".join(sorted(prefetch._entries))


def test_the_next_parts_are_brought_while_one_is_used() -> None:
    bringing = Bringing()
    prefetch = prefetcher(2 * SIZE, bringing)
    forward(prefetch, "abcdefabcdef")
    prefetch.clear()
    prefetch.get("a")
    assert settled(prefetch) == "ab"
    prefetch.done("a")
    prefetch.clear()
    prefetch.room = 4 * SIZE
    prefetch.get("b")
    assert settled(prefetch) == "bcd"


@pytest.mark.parametrize("room", [0, SIZE, 3 * SIZE, 100 * SIZE])
def test_no_more_is_held_than_there_is_room_for(room: int) -> None:
    bringing = Bringing()
    prefetch = prefetcher(room, bringing)
    for part in "abcdef" * 4:
        assert prefetch.get(part)[0].item() == ord(part)
        assert len(settled(prefetch)) * SIZE <= room + SIZE
        prefetch.done(part)
        assert len(settled(prefetch)) * SIZE <= room


def test_what_fits_is_brought_once() -> None:
    bringing = Bringing()
    forward(prefetcher(6 * SIZE, bringing), "abcdef" * 5)
    assert bringing.since(0) == "abcdef"


def test_what_is_used_latest_goes_first() -> None:
    bringing = Bringing()
    prefetch = prefetcher(4 * SIZE, bringing)
    forward(prefetch, "abcdef" * 3)
    mark = len(bringing.brought)
    forward(prefetch, "abcdef" * 10)
    assert len(bringing.since(mark)) / 10 < 6, "some parts stay from one forward to the next"


def test_control_flow_that_skips_parts() -> None:
    bringing = Bringing()
    prefetch = prefetcher(2 * SIZE, bringing)
    forward(prefetch, "abcdef" * 2 + "abef" * 3 + "abcdef" * 2 + "f" + "ba" * 4 + "abcdef")


@given(st.lists(st.sampled_from("abcdefgh"), max_size=60), st.integers(0, 9))
def test_any_order_at_all(parts: list[str], room: int) -> None:
    prefetch = prefetcher(room * SIZE, Bringing())
    forward(prefetch, "".join(parts))
    assert len(settled(prefetch)) <= room


def test_several_forwards_at_once() -> None:
    prefetch = prefetcher(3 * SIZE, Bringing())
    failures: list[BaseException] = []

    def loop() -> None:
        try:
            forward(prefetch, "abcdef" * 20)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=loop) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert failures == []
    assert len(settled(prefetch)) <= 3


def test_a_part_in_use_stays() -> None:
    prefetch = prefetcher(0, Bringing())
    held = prefetch.get("a")
    forward(prefetch, "bcb")
    assert held[0].item() == ord("a")
    assert settled(prefetch) == "a"
    prefetch.done("a")
    assert settled(prefetch) == ""


def test_an_error_is_that_of_the_part_and_does_not_stay() -> None:
    bringing = Bringing()
    prefetch = prefetcher(2 * SIZE, bringing)
    bringing.failing = [OSError("the disk is gone")]
    with pytest.raises(OSError, match="the disk is gone"):
        prefetch.get("a")
    prefetch.done("a")
    forward(prefetch, "abcabc")


def test_an_error_while_reading_ahead_is_raised_when_its_part_runs() -> None:
    bringing = Bringing()
    prefetch = prefetcher(2 * SIZE, bringing)
    forward(prefetch, "abcdabcd")
    prefetch.clear()
    bringing.failing = []
    prefetch.get("a")
    settled_before = settled(prefetch)
    assert "b" in settled_before
    prefetch.done("a")
    prefetch.clear()
    bringing.failing = [OSError("gone"), OSError("gone")]
    with pytest.raises(OSError, match="gone"):
        forward(prefetch, "b")


def test_a_device_that_is_full_is_emptied_and_asked_again() -> None:
    bringing = Bringing()
    prefetch = prefetcher(4 * SIZE, bringing)
    forward(prefetch, "abcdabcd")
    prefetch.clear()
    bringing.failing = [torch.OutOfMemoryError("full")]
    forward(prefetch, "a")
    assert bringing.brought.count("a") >= 2


def test_what_was_written_to_is_brought_again() -> None:
    bringing = Bringing()
    prefetch = prefetcher(4 * SIZE, bringing)
    forward(prefetch, "ab")
    prefetch.get("a")[0].add_(1)
    prefetch.done("a")
    forward(prefetch, "ab")


def test_a_forked_process_has_readers_of_its_own() -> None:
    prefetch = prefetcher(2 * SIZE, Bringing())
    forward(prefetch, "abcabc")
    first = prefetch._pool
    prefetch._owner = os.getpid() + 1
    prefetch.clear()
    forward(prefetch, "abc")
    assert prefetch._pool is not first
