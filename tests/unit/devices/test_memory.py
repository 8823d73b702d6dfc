"""Retrying with smaller batches, and giving memory back."""

from __future__ import annotations

import gc
import logging
import weakref

import pytest
import torch

from accelerate.devices.memory import (
    clear_device_cache,
    find_executable_batch_size,
    release_memory,
    should_reduce_batch_size,
)

OUT = "CUDA out of memory. Tried to allocate 2.00 GiB"


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (RuntimeError(OUT), True),
        (RuntimeError("MPS backend out of memory (MPS allocated: 1 GB)"), True),
        (RuntimeError("cuDNN error: CUDNN_STATUS_NOT_SUPPORTED. This error may appear"), True),
        (RuntimeError("[enforce fail at alloc_cpu.cpp:1] DefaultCPUAllocator: can't allocate memory"), True),
        (RuntimeError("FATAL ERROR :: MODULE:PT_DEVMEM Allocation failed for size::1 (1)MB"), True),
        (torch.OutOfMemoryError("a backend's own words"), True),
        (torch.OutOfMemoryError("two", "arguments"), True),
        (RuntimeError("two", " out of memory."), False),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), False),
        (ValueError(OUT), False),
        (MemoryError(), False),
    ],
)
def test_what_counts_as_memory_that_ran_out(error: BaseException, expected: bool) -> None:
    assert should_reduce_batch_size(error) is expected


def test_batches_shrink_by_a_tenth_until_one_fits_and_it_is_remembered(caplog: pytest.LogCaptureFixture) -> None:
    tried: list[int] = []

    @find_executable_batch_size(starting_batch_size=100)
    def train(batch_size: int, factor: int, *, offset: int = 0) -> int:
        """Train."""
        tried.append(batch_size)
        if batch_size > 70:
            raise RuntimeError(OUT)
        return batch_size * factor + offset

    with caplog.at_level(logging.INFO, logger="accelerate.devices.memory"):
        assert train(2, offset=1) == 64 * 2 + 1
    assert tried == [100, 90, 81, 72, 64]
    lowered = [record.getMessage() for record in caplog.records if "Decreasing" in record.getMessage()]
    assert lowered == [f"Decreasing the batch size of train to {size}." for size in (90, 81, 72, 64)]
    assert train(1) == 64
    assert tried[-1] == 64
    assert (train.__name__, train.__doc__) == ("train", "Train.")


def test_it_can_be_called_with_the_function() -> None:
    assert find_executable_batch_size(lambda batch_size: batch_size, 12)() == 12


def test_nothing_fits_is_said_clearly_with_the_cause() -> None:
    tried: list[int] = []

    @find_executable_batch_size(starting_batch_size=5)
    def train(batch_size: int) -> None:
        tried.append(batch_size)
        raise RuntimeError(OUT)

    with pytest.raises(RuntimeError, match="with its batch size reduced to zero"):
        train()
    assert tried == [5, 4, 3, 2, 1]


def test_the_search_stops_at_the_minimum() -> None:
    tried: list[int] = []

    @find_executable_batch_size(starting_batch_size=16, reduce_batch_size_fn=lambda: tried[-1] // 2, minimum=4)
    def train(batch_size: int) -> None:
        tried.append(batch_size)
        raise torch.OutOfMemoryError(OUT)

    with pytest.raises(RuntimeError, match="reduced to 2, below the minimum of 4"):
        train()
    assert tried == [16, 8, 4]


def test_a_reduction_of_ones_own_is_followed() -> None:
    sizes = iter([7, 3])

    @find_executable_batch_size(starting_batch_size=13, reduce_batch_size_fn=lambda: next(sizes))
    def train(batch_size: int) -> int:
        if batch_size > 3:
            raise RuntimeError(OUT)
        return batch_size

    assert train() == 3


@pytest.mark.parametrize("returned", [8, 9])
def test_a_reduction_that_does_not_reduce_is_an_error(returned: int) -> None:
    @find_executable_batch_size(starting_batch_size=8, reduce_batch_size_fn=lambda: returned)
    def train(batch_size: int) -> None:
        raise RuntimeError(OUT)

    with pytest.raises(RuntimeError, match=f"returned {returned} after 8 ran out"):
        train()


def test_other_errors_come_through() -> None:
    @find_executable_batch_size(starting_batch_size=8)
    def train(batch_size: int) -> None:
        raise KeyError("label")

    with pytest.raises(KeyError, match="label"):
        train()


def test_a_batch_size_that_is_passed_is_refused() -> None:
    @find_executable_batch_size(starting_batch_size=8)
    def train(batch_size: int, model: str, data: str) -> None: ...

    with pytest.raises(TypeError) as refused:
        train(8, "m", "d")
    assert "a call of `train` with a batch size of its own" in str(refused.value)
    assert "call it without: `train(model=m, data=d)`" in str(refused.value)


@pytest.mark.parametrize(
    ("function", "kwargs", "words"),
    [
        (lambda batch_size: None, {"batch_size": 3}, "multiple values for argument 'batch_size'"),
        (lambda: None, {}, "too many positional arguments"),
        (lambda batch_size, model: None, {}, "missing a required argument: 'model'"),
    ],
)
def test_arguments_that_do_not_fit_are_named(function, kwargs: dict, words: str) -> None:
    with pytest.raises(TypeError, match=words):
        find_executable_batch_size(function, 8)(**kwargs)


def test_what_a_failed_try_held_is_gone_before_the_next() -> None:
    held: list[weakref.ref] = []

    class Activations: ...

    @find_executable_batch_size(starting_batch_size=8, reduce_batch_size_fn=lambda: 4)
    def train(batch_size: int) -> bool:
        if held:
            return held[0]() is None
        activations = Activations()
        held.append(weakref.ref(activations))
        raise RuntimeError(OUT)

    assert train()


def test_the_cache_of_the_accelerator_is_emptied(machine) -> None:
    clear_device_cache()  # nothing to empty
    backend = machine.add("xpu")
    clear_device_cache()
    assert backend.calls == [("empty_cache",)]


def test_the_cache_of_an_absent_accelerator_is_left_alone(machine) -> None:
    backend = machine.add("xpu")
    backend.available = False
    clear_device_cache()
    assert backend.calls == []


def test_garbage_is_collected_when_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    collected: list[int] = []
    monkeypatch.setattr(gc, "collect", lambda: collected.append(1))
    clear_device_cache()
    assert collected == []
    clear_device_cache(garbage_collection=True)
    assert collected == [1]


@pytest.mark.parametrize("count", [0, 1, 3])
def test_as_many_nones_come_back_as_objects_went_in(count: int) -> None:
    assert release_memory(*range(count)) == [None] * count
