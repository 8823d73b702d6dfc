"""A pass goes on where it was saved: the same samples in the same order, whoever reads the rest of it.

With as many processes the steps are the same; with another number of them and the same samples in a step, each step has
the same samples. The number of workers may change in either case.
"""

from __future__ import annotations

import pickle
import warnings
from importlib.util import find_spec

import pytest
from torch.utils.data import DataLoader, IterableDataset

from tests.unit.data_loader.streams import OfAnySize, Sources

from .conftest import processes
from .data_cases import (
    Batches,
    Case,
    Count,
    accelerator_with,
    batched,
    counted,
    divided,
    library_stream,
    prepared,
    streamed,
    values,
)

CASES = {
    "shuffled": counted(31, batch_size=2, shuffle=True),
    "shuffled, split": counted(31, batch_size=4, shuffle=True, split_batches=True),
    "shuffled, dispatched": counted(31, batch_size=2, shuffle=True, dispatch_batches=True),
    "seedable": counted(31, batch_size=2, shuffle=True, use_seedable_sampler=True),
    "batch sampler": batched(31, lambda: Batches(range(31), 2, False)),
    "batches of any size": batched(31, lambda: OfAnySize(31)),
    "stream": streamed(31, batch_size=2),
    "stream, workers": streamed(31, batch_size=2, num_workers=2),
    "stream, workers, dispatched": streamed(31, True, batch_size=2, num_workers=2),
    "sources": divided((9, 4, 7, 11), batch_size=2),
    "sources, workers": divided((9, 4, 7, 11), batch_size=2, num_workers=2),
}
if find_spec("datasets") is not None:
    for shuffled in (False, True):
        CASES[f"library stream, {'shuffled' if shuffled else 'in order'}"] = Case(
            lambda shuffled=shuffled: library_stream((19, 14, 17, 21), shuffled),
            (),
            {"batch_size": 2, "num_workers": 2},
            None,
            {"dispatch_batches": False, "use_stateful_dataloader": find_spec("torchdata") is not None},
        )


def real(accelerator, loader):
    """Yield what is real of each batch of this rank."""
    for batch in loader:
        tail = accelerator.gradient_state.active.tail
        count = None if tail is None else tail.counts[accelerator.process_index]
        yield values(batch)[:count]


def interrupted_and_resumed(place):
    """Return, for each case: what is left of the second epoch and the third one, and what a resumed run finds."""
    from accelerate.utils import set_seed

    warnings.simplefilter("ignore")
    found = {}
    for name, case in CASES.items():
        workers = case.loading.get("num_workers", 0)
        accelerator, loader = prepared(case)
        list(loader)
        steps = real(accelerator, loader)
        for _ in range(place):
            next(steps)
        state = accelerator.runtime.collectives.broadcast_object(loader.state_dict())  # the main process saves for all
        expected = [list(steps)]
        set_seed(2)  # load_state restores the generator that the next epoch is drawn from
        expected.append(list(real(accelerator, loader)))
        found[name] = expected, []
        for now in {workers, 1 - min(workers, 1)}:
            accelerator, other = prepared(case, num_workers=now)
            other.load_state_dict(pickle.loads(pickle.dumps(state)))
            resumed = [list(real(accelerator, other))]
            set_seed(2)
            if now == workers or not isinstance(other.dataset, IterableDataset):  # else in an order of its own
                resumed.append(list(real(accelerator, other)))
            found[name][1].append(resumed)
    return found


@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize("place", [1, 5])
def test_as_many_processes_go_on_in_the_same_order(size, place):
    for of_rank in processes(size).run(interrupted_and_resumed, place):
        for name, (expected, found) in of_rank.items():
            for each in found:
                assert each == expected[: len(each)], name


STREAMS = {
    "of sources": Sources(*[range(1000 * i, 1000 * i + size) for i, size in enumerate((90, 41, 71, 100))]),
    "read whole": Sources(range(403)),
    "without a state": Count(203),
}


def torchdata_resumes():
    """Return what is left of an interrupted pass of each kind of stream, and what a resumed one finds."""
    warnings.simplefilter("ignore")
    found = []
    for name, stream in STREAMS.items():
        for workers, dispatch, place in ((0, False, 3), (0, True, 37), (2, False, 37), (2, True, 3), (2, True, 37)):
            case = Case(
                lambda stream=stream: pickle.loads(pickle.dumps(stream)),
                (),
                {"batch_size": 2, "num_workers": workers},
                None,
                {"dispatch_batches": dispatch, "use_stateful_dataloader": True},
            )
            accelerator, one = prepared(case)
            steps = real(accelerator, one)
            for _ in range(place):
                next(steps)
            state = accelerator.runtime.collectives.broadcast_object(one.state_dict())
            accelerator, other = prepared(case, num_workers=2 - workers)
            other.load_state_dict(pickle.loads(pickle.dumps(state)))
            found.append(((name, workers, dispatch, place), list(steps), list(real(accelerator, other))))
    return found


def test_torchdata_resumes_streams_with_another_number_of_workers():
    pytest.importorskip("torchdata.stateful_dataloader", reason="torchdata is an extra")
    for of_rank in processes(2).run(torchdata_resumes):
        for name, expected, found in of_rank:
            assert found == expected, name


RESHAPED = {
    "shuffled": lambda size, workers: DataLoader(range(90), batch_size=8 // size, shuffle=True, num_workers=workers),
    "batch sampler": lambda size, workers: DataLoader(
        range(90), batch_sampler=Batches(range(90), 8 // size, False), num_workers=workers
    ),
    "stream": lambda size, workers: DataLoader(Count(90), batch_size=8 // size, num_workers=min(workers, 1)),
}


def save_and_go_on(folder, place, workers):
    """Save in the second epoch, and return what is gathered in each step after that."""
    from accelerate.utils import set_seed

    warnings.simplefilter("ignore")
    accelerator = accelerator_with(dispatch_batches=False)
    set_seed(11)
    loaders = accelerator.prepare(*(make(accelerator.num_processes, workers) for make in RESHAPED.values()))
    found = []
    for loader in loaders:
        list(loader)
    passes = [iter(loader) for loader in loaders]
    for one_pass in passes:
        for _ in range(place):
            next(one_pass)
    accelerator.save_state(folder)
    for one_pass in passes:
        found.append([sorted(accelerator.gather_for_metrics(batch).tolist()) for batch in one_pass])
    return found


def go_on(folder, workers):
    warnings.simplefilter("ignore")
    accelerator = accelerator_with(dispatch_batches=False)
    loaders = accelerator.prepare(*(make(accelerator.num_processes, workers) for make in RESHAPED.values()))
    accelerator.load_state(folder)
    return [[sorted(accelerator.gather_for_metrics(batch).tolist()) for batch in loader] for loader in loaders]


@pytest.mark.parametrize(("before", "after"), [(1, 2), (2, 4), (4, 1)])
def test_another_number_of_processes_goes_on_with_the_same_steps(before, after, tmp_path):
    folder = str(tmp_path / "checkpoint")
    expected = processes(before).run(save_and_go_on, folder, 5, 1)[0]
    for found in processes(after).run(go_on, folder, 2):
        assert dict(zip(RESHAPED, found, strict=True)) == dict(zip(RESHAPED, expected, strict=True))
