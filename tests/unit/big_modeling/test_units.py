"""Sizes as people write them, and bytes per element."""

from __future__ import annotations

import pytest
import torch

from accelerate.big_modeling.units import convert_file_size_to_int, dtype_byte_size, proper_dtype, readable
from accelerate.config.enums import CustomDtype


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("10GiB", 10 * 2**30),
        ("10GIB", 10 * 2**30),
        ("10Gib", 10 * 2**30),
        ("1.5GB", 1_500_000_000),
        ("1 GB", 10**9),
        ("10Gb", 1_250_000_000),
        ("10gb", 1_250_000_000),
        ("1.5Kb", 187),
        ("5KB", 5000),
        ("3MiB", 3 * 2**20),
        ("1e3MB", 10**9),
        ("2TiB", 2 * 2**40),
        (12, 12),
        (1.9, 1),
    ],
)
def test_sizes(text: str | int, size: int) -> None:
    assert convert_file_size_to_int(text) == size


@pytest.mark.parametrize("text", ["12", "", "10XB", "-1GB", "GB", -1, None])
def test_what_is_no_size_is_refused(text: object) -> None:
    with pytest.raises(ValueError, match="can't be read as one"):
        convert_file_size_to_int(text)


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (3 * 2**40, "3.0 TiB"), (5000 * 2**40, "5000.0 TiB")],
)
def test_sizes_for_people(size: int, text: str) -> None:
    assert readable(size) == text


@pytest.mark.parametrize(
    ("dtype", "size"),
    [
        (torch.float32, 4),
        ("bfloat16", 2),
        ("torch.float64", 8),
        (torch.float8_e4m3fn, 1),
        (torch.int64, 8),
        (torch.complex64, 8),
        (torch.bool, 1 / 8),
        (torch.uint4, 1 / 2) if hasattr(torch, "uint4") else (torch.uint8, 1),
        (CustomDtype.FP8, 1),
        (CustomDtype.INT4, 1 / 2),
        (CustomDtype.INT2, 1 / 4),
    ],
)
def test_bytes_per_element(dtype: object, size: float) -> None:
    assert dtype_byte_size(dtype) == size


def test_an_unknown_dtype_is_refused_with_the_nearest() -> None:
    assert proper_dtype(torch.int8) is torch.int8
    with pytest.raises(ValueError, match="Did you mean 'float16'"):
        proper_dtype("flaot16")
    with pytest.raises(ValueError, match="no dtype of that name"):
        proper_dtype("nn")
