"""`gather_for_metrics` returns every sample exactly once, in real processes."""

from __future__ import annotations

import pytest
from torch.utils.data import DataLoader

from .conftest import world_of


def collect(cases):
    """Return what is gathered for each (length, batch size) of `cases`, as tensors and as objects."""
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    found = []
    for length, batch_size in cases:
        loader = accelerator.prepare(DataLoader(range(length), batch_size=batch_size))
        tensors, objects = [], []
        for batch in loader:
            tensors += accelerator.gather_for_metrics(batch).tolist()
            objects += accelerator.gather_for_metrics([str(each) for each in batch.tolist()])
        found.append((tensors, objects))
    return found


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_each_sample_is_gathered_once(size):
    cases = [(length, batch) for length in (1, 2, 5, 8, 13, 16, 24, 40) for batch in (1, 2, 3, 5, 9)]
    for found in world_of(size).run(collect, cases):
        for (length, batch), (tensors, objects) in zip(cases, found, strict=True):
            assert tensors == list(range(length)), (length, batch)
            assert objects == [str(each) for each in range(length)], (length, batch)
