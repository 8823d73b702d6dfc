"""Whether a place can be found by a loader that takes other steps, and by whom a stream is read then."""

from __future__ import annotations

import pytest
from torch.utils.data import DataLoader, IterableDataset

from accelerate.data_loader.pace import Pace
from accelerate.data_loader.tails import read_by


def saved(pace, batches=3, shift=0):
    return {"batches": batches, "shift": shift, **pace.state()}


@pytest.mark.parametrize(
    ("before", "now", "problem"),
    [
        (Pace(8, 2), Pace(8, 2), None),
        (Pace(8, 2), Pace(16, 4), None),
        (Pace(8, 2), Pace(6, 1), None),
        (Pace(None, 2), Pace(None, 3), None),
        (Pace(None, 2), Pace(8, 2), "counted in batches, and this loader counts in samples"),
        (Pace(8, 2), Pace(None, 2), "counted in samples, and this loader counts in batches"),
        (Pace(8, 2, None, 1), Pace(16, 4, None, 1), None),
        (Pace(8, 2, 2, 0), Pace(16, 4, 4, 0), "read by 2 processes and is read by 4 processes now"),
        (Pace(8, 2, None, 1), Pace(16, 4, 4, 1), "read as a whole and is read by 4 processes now"),
        (Pace(8, 2, 2, 2), Pace(8, 2, 2, 2), None),
        (Pace(8, 2, 2, 0), Pace(16, 2, 2, 0), "in batches of 4 and is read in batches of 8"),
        (Pace(8, 2, None, 2), Pace(16, 4, None, 2), None),
        (Pace(8, 2, None, 2), Pace(8, 4, None, 2), "in batches of 4 and is read in batches of 2"),
        (Pace(8, 2, None, 1), Pace(8, 4, None, 1), None),
    ],
)
def test_what_can_be_found_and_what_not(before, now, problem):
    found = now.problem(saved(before))
    assert found is None if problem is None else problem in found
    assert now.problem(saved(before, batches=0)) is None, "the start of an epoch is found at any pace"
    assert Pace.of(saved(before)) == before


class Stream(IterableDataset):
    def __iter__(self):
        return iter(range(4))


@pytest.mark.parametrize(
    ("has", "wanted", "exactly", "gets", "prefetch"),
    [
        (2, 2, True, 2, 4),
        (0, 1, False, 0, None),
        (0, 1, True, 1, 2),
        (1, 0, False, 1, 4),
        (2, 0, False, 0, None),
        (2, 3, False, 3, 4),
    ],
)
def test_a_stream_is_read_by_as_many_workers_as_before(has, wanted, exactly, gets, prefetch):
    options = {"prefetch_factor": 4, "persistent_workers": True, "timeout": 9} if has else {}
    loader = DataLoader(Stream(), num_workers=has, **options)
    if gets == has:
        assert read_by(loader, wanted, exactly) is loader
        return
    with pytest.warns(UserWarning, match=f"num_workers={wanted}, as it was begun; .*num_workers={has}"):
        found = read_by(loader, wanted, exactly)
    assert (found.num_workers, found.prefetch_factor, found.persistent_workers) == (gets, prefetch, False)
    assert found.timeout == (9 if gets and has else 0)
    assert loader.num_workers == has
