"""Sizes as people write them, and how many bytes an element of each number format takes."""

from __future__ import annotations

import re
from typing import Any

import torch

from accelerate.base.messages import did_you_mean, message
from accelerate.config.enums import CustomDtype

#: Bytes per unit. A lower-case b at the end counts bits, an eighth of it.
UNITS = {f"{prefix}B": 1000**power for power, prefix in enumerate(("K", "M", "G", "T", "P"), 1)} | {
    f"{prefix}IB": 1024**power for power, prefix in enumerate(("K", "M", "G", "T", "P"), 1)
}

_SIZE = re.compile(r"\s*(\d+(?:\.\d*)?(?:e\d+)?)\s*([kmgtp]i?b)\s*", re.IGNORECASE)

#: Bits of an element where that is no whole number of bytes, or torch has no such dtype.
_BITS: dict[Any, int] = {CustomDtype.FP8: 8, CustomDtype.INT4: 4, CustomDtype.INT2: 2, torch.bool: 1}
_BITS |= {torch.quint4x2: 4, torch.quint2x4: 2}
for _bits in range(1, 8):
    _named = (getattr(torch, f"{sign}int{_bits}", None) for sign in ("", "u"))
    _BITS |= {dtype: _bits for dtype in _named if dtype is not None}


def convert_file_size_to_int(size: int | str) -> int:
    """Return a number of bytes.

    Args:
        size: the number, or text such as "10GB" (units of 1000) or "10GiB" (units of 1024). "10Gb" counts bits.

    Raises:
        ValueError: the text has no such form.
    """
    if isinstance(size, (int, float)) and size >= 0:
        return int(size)
    found = _SIZE.fullmatch(size) if isinstance(size, str) else None
    if found is None:
        raise ValueError(
            message(
                given=f"size {size!r}",
                why="a size is a number with a unit, and this can't be read as one",
                allowed=f"a number of bytes, or text such as '5.0GB' with one of {', '.join(UNITS)}",
                do="write a unit; GB counts in thousands, GiB in 1024",
            )
        )
    number, unit = found.groups()
    total = float(number) * UNITS[unit.upper()]
    return int(total // 8 if unit.endswith("b") and unit[1] not in "iI" else total)


def readable(size: float) -> str:
    """Return a number of bytes as a person reads it, in units of 1024: `readable(1536)` is "1.5 KiB"."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(size) < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"


def dtype_byte_size(dtype: Any) -> int | float:
    """Return how many bytes an element takes; less than one for packed formats.

    Args:
        dtype: a torch dtype, its name, or a `CustomDtype`.
    """
    dtype = proper_dtype(dtype)
    bits = _BITS.get(dtype) or dtype.itemsize * 8
    return bits / 8 if bits % 8 else bits // 8


def proper_dtype(dtype: Any) -> Any:
    """Return a dtype that may be given by its name, such as "float16" or "torch.float16".

    Raises:
        ValueError: torch has no dtype of that name.
    """
    if not isinstance(dtype, str):
        return dtype
    name = dtype.removeprefix("torch.")
    found = getattr(torch, name, None)
    if isinstance(found, torch.dtype):
        return found
    known = [each for each in dir(torch) if isinstance(getattr(torch, each), torch.dtype)]
    raise ValueError(
        message(
            given=f"dtype {dtype!r}",
            why="torch has no dtype of that name",
            allowed=", ".join(known),
            do=did_you_mean(name, known),
        )
    )
