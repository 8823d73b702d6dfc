"""Copies of other people's loaders and samplers with some attributes replaced.

A copy keeps the class and whatever else its owner put into the object, where building a new one from the settings that
we know of would lose it; and the user's object stays as it was.
"""

from __future__ import annotations

import copy
from typing import Any, TypeVar

from torch.utils.data import DataLoader

T = TypeVar("T")


def copy_with(original: T, **attributes: Any) -> T:
    """Return a shallow copy of an object with other values of some attributes."""
    twin = copy.copy(original)
    twin.__dict__.update(attributes)
    return twin


def copy_loader(loader: DataLoader, **attributes: Any) -> DataLoader:
    """Return a copy of a loader, which shares neither workers nor iterators with the original.

    Attributes that `DataLoader` refuses to change after its construction (`sampler`, `batch_size`...) may be given too.
    """
    return copy_with(loader, _iterator=None, **attributes)
