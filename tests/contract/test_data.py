"""Data in real processes: every sample once, in lockstep, and a pass that goes on where it was saved."""

from __future__ import annotations

import multiprocessing
import pickle
import warnings
from collections import Counter
from itertools import chain
from typing import NamedTuple

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, WeightedRandomSampler, get_worker_info

from tests.unit.data_loader.streams import Sources

from .conftest import world_of


class Pair(NamedTuple):
    x: torch.Tensor
    names: list


class Count(IterableDataset):
    """Counts to `size`; where there are workers, each reads its own part."""

    def __init__(self, size):
        self.size = size

    def __iter__(self):
        worker = get_worker_info()
        return iter(range(self.size) if worker is None else range(worker.id, self.size, worker.num_workers))


class Augmented(Dataset):
    """Samples with what the worker draws for them from each generator."""

    def __init__(self, size):
        self.size = size

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        return index, torch.rand(()).item(), np.random.rand()


class Rich(Dataset):
    """Nested samples with leaves of several kinds and of several sizes."""

    def __init__(self, size):
        self.size = size

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        return {"ids": torch.full((3,), index), "name": f"sample {index}", "flags": [index % 2 == 0, float(index)]}


def ragged(samples):
    """Make a batch as wide as its greatest sample."""
    return Pair(torch.nn.utils.rnn.pad_sequence([torch.full((s + 1,), s) for s in samples], True, -1), list(samples))


def accelerate(**options):
    from accelerate import Accelerator, DataLoaderConfiguration

    multiprocessing.current_process()._config["daemon"] = False  # ranks of a World may have workers of their own
    return Accelerator(cpu=True, dataloader_config=DataLoaderConfiguration(**options))


def gathered(accelerator, loader, of=lambda batch: batch):
    return [index for batch in loader for index in accelerator.gather_for_metrics(of(batch)).tolist()]


def see_everything(cases):
    """Return what is gathered, and what this rank was given, for (data, loader options, configuration)."""
    warnings.filterwarnings("ignore", message="Ranks .* ran out of data")
    found = []
    for data, loading, configuration in cases:
        accelerator = accelerate(**configuration)
        loader = accelerator.prepare(DataLoader(data, **loading))
        batches = []
        for batch in loader:
            batches.append((len(batch), accelerator.gather_for_metrics(batch).tolist()))
        found.append(([each for _, gathered in batches for each in gathered], [size for size, _ in batches]))
    return found


CASES = [
    *(
        (range(length), {"batch_size": 4, "shuffle": shuffle, "num_workers": workers}, {"split_batches": split})
        for length in (1, 7, 16, 33)
        for shuffle in (False, True)
        for workers in (0, 2)
        for split in (False, True)
        if not (workers and length == 1)
    ),
    *(
        (Count(length), {"batch_size": 3, "num_workers": workers}, {"dispatch_batches": dispatch})
        for length in (0, 1, 8, 25)
        for workers in (0, 2)
        for dispatch in (False, True)
    ),
    *(
        (
            Sources(*[range(100 * i, 100 * i + size) for i, size in enumerate(sizes)]),
            {"batch_size": 2, "num_workers": workers},
            {"dispatch_batches": False},
        )
        for sizes in ((4, 4, 4, 4), (5, 0, 2, 9, 1), (0, 0, 0, 3))
        for workers in (0, 2)
    ),
]


@pytest.mark.parametrize("size", [2, 4])
def test_every_sample_is_gathered_once_and_ranks_take_as_many_steps(size):
    found = world_of(size).run(see_everything, CASES)
    for (data, loading, configuration), *of_ranks in zip(CASES, *found, strict=True):
        samples = (
            data if isinstance(data, range) else range(data.size) if isinstance(data, Count) else chain(*data.sources)
        )
        case = f"{data} {loading} {configuration}"
        for seen, sizes in of_ranks:
            assert (
                sorted(seen) == list(samples) if not isinstance(data, Sources) else Counter(seen) == Counter(samples)
            ), case
            assert sizes == of_ranks[0][1], case


def read_shuffled(epochs):
    accelerator = accelerate()
    from accelerate.utils import set_seed

    set_seed(5)
    loaders = accelerator.prepare(
        DataLoader(Augmented(24), batch_size=3, shuffle=True, num_workers=2),
        DataLoader(Augmented(24), batch_size=3, sampler=WeightedRandomSampler(torch.ones(24), 24), num_workers=0),
    )
    return [
        [
            [value for batch in loader for value in zip(*map(torch.Tensor.tolist, batch), strict=True)]
            for _ in range(epochs)
        ]
        for loader in loaders
    ]


def test_one_order_for_all_and_augmentation_that_differs_and_repeats(pair):
    found = pair.run(read_shuffled, 2)
    assert pair.run(read_shuffled, 2) == found
    shuffled = [epochs for epochs, _ in found]
    for epoch in range(2):
        assert sorted(index for rank in shuffled for index, *_ in rank[epoch]) == list(range(24))
    assert shuffled[0][0] != shuffled[0][1]
    for kind in (1, 2):
        drawn = [sample[kind] for rank in shuffled for epoch in rank for sample in epoch]
        assert len(set(drawn)) == len(drawn)


def dispatch_all(cases):
    found = []
    for data, loading, configuration in cases:
        accelerator = accelerate(dispatch_batches=True, **configuration)
        found.append(list(accelerator.prepare(DataLoader(data, **loading))))
    return found


def test_batches_of_any_kind_are_dispatched(pair):
    cases = [
        (Rich(7), {"batch_size": 2}, {}),
        (range(7), {"batch_size": 2, "collate_fn": ragged}, {}),
        (Rich(5), {"batch_size": None}, {}),
        (Rich(6), {"batch_size": 4}, {"split_batches": True}),
    ]
    (rich0, ragged0, whole0, split0), (rich1, ragged1, whole1, split1) = pair.run(dispatch_all, cases)
    assert [batch["ids"][:, 0].tolist() for batch in rich0] == [[0, 1], [4, 5]]
    assert [batch["ids"][:, 0].tolist() for batch in rich1] == [[2, 3], [6, 0]]
    assert rich1[1]["name"] == ["sample 6", "sample 0"]
    assert [flag.tolist() for flag in rich1[1]["flags"]] == [[True, True], [6.0, 0.0]]
    assert [type(batch) for batch in ragged0 + ragged1] == [Pair] * 4
    assert [batch.x.shape[1] for batch in ragged0] == [2, 6]
    assert [batch.names for batch in ragged1] == [[2, 3], [0, 1]]  # of other widths: repeated as a whole
    assert [batch["name"] for batch in whole0] == ["sample 0", "sample 2", "sample 4"]
    assert [batch["name"] for batch in whole1] == ["sample 1", "sample 3", "sample 0"]
    assert [batch["name"] for batch in split0 + split1] == [
        ["sample 0", "sample 1"],
        ["sample 4"],
        ["sample 2", "sample 3"],
        ["sample 5"],
    ]


def save_and_go_on(data, workers, dispatch, place):
    """Return what is left of an interrupted pass, and what a resumed one finds."""
    warnings.filterwarnings("ignore", message="Ranks .* ran out of data")
    warnings.filterwarnings("ignore", message="'set_vital' is deprecated")
    accelerator = accelerate(dispatch_batches=dispatch, use_stateful_dataloader=True)

    def make():
        return accelerator.prepare(DataLoader(pickle.loads(data), batch_size=2, num_workers=workers))

    def real(batch):
        tail = accelerator.gradient_state.active.tail
        return batch.tolist()[: None if tail is None else tail.counts[accelerator.process_index]]

    one, other = make(), make()
    batches = iter(one)
    for _ in range(place):
        next(batches)
    state = accelerator.runtime.collectives.broadcast_object(one.state_dict())  # the main process saves for all
    other.load_state_dict(pickle.loads(pickle.dumps(state)))
    return [[*map(real, batches)], [*map(real, one)]], [[*map(real, other)], [*map(real, other)]]


STREAMS = {
    "of sources": Sources(*[range(1000 * i, 1000 * i + size) for i, size in enumerate((90, 41, 71, 100))]),
    "read whole": Sources(range(403)),
    "without a state": Count(203),
}


@pytest.mark.parametrize("place", [3, 37])
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("dispatch", [False, True])
@pytest.mark.parametrize("name", STREAMS)
def test_torchdata_resumes_streams(pair, name, dispatch, workers, place):
    pytest.importorskip("torchdata.stateful_dataloader", reason="torchdata is an extra")
    for expected, found in pair.run(save_and_go_on, pickle.dumps(STREAMS[name]), workers, dispatch, place):
        assert found == expected


def read_some(place, folder, seed):
    """Read `place` batches of the second epoch and save."""
    from accelerate.utils import set_seed

    accelerator = accelerate()
    set_seed(seed)
    loader = accelerator.prepare(DataLoader(range(96), batch_size=8 // accelerator.num_processes, shuffle=True))
    gathered(accelerator, loader)
    seen = []
    for number, batch in enumerate(loader):
        seen.append(sorted(accelerator.gather_for_metrics(batch).tolist()))
        if number + 1 == place:
            accelerator.save_state(folder)
    return seen


def go_on(folder):
    accelerator = accelerate()
    loader = accelerator.prepare(DataLoader(range(96), batch_size=8 // accelerator.num_processes, shuffle=True))
    accelerator.load_state(folder)
    return [sorted(accelerator.gather_for_metrics(batch).tolist()) for batch in loader]


@pytest.mark.parametrize(("before", "after"), [(2, 4), (4, 2), (2, 1)])
def test_another_number_of_processes_goes_on_with_the_same_steps(before, after, tmp_path):
    whole = world_of(before).run(read_some, 5, str(tmp_path / "checkpoint"), seed=11)[0]
    for found in world_of(after).run(go_on, str(tmp_path / "checkpoint")):
        assert found == whole[5:]


def prepare_different_lengths():
    accelerator = accelerate()
    try:
        accelerator.prepare(DataLoader(range(10 + accelerator.process_index), batch_size=2))
    except ValueError as error:
        return str(error)


def test_datasets_of_different_lengths_are_refused_on_every_rank(pair):
    for error in pair.run(prepare_different_lengths):
        assert "10 on rank 0; 11 on rank 1" in error


def read_streams_of_different_lengths():
    accelerator = accelerate(dispatch_batches=False)
    loader = accelerator.prepare(DataLoader(Count(30 - 20 * accelerator.process_index), batch_size=2))
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        sizes = []
        for batch in loader:
            flag = torch.ones(1)
            torch.distributed.all_reduce(flag)  # what a training step does
            sizes.append((len(batch), flag.item()))
    return sizes, [str(each.message) for each in said]


def test_streams_of_different_lengths_end_together(pair):
    (first, said), (second, nothing) = pair.run(read_streams_of_different_lengths)
    assert first == second == [(2, 2.0)] * 8
    assert len(said) == 1
    assert "Ranks [1] ran out of data after 3 steps" in said[0]
    assert nothing == []


def fail_in_a_worker(samples):
    if 6 in samples:
        raise KeyError("no such label")
    return samples


def read_what_fails(dispatch):
    accelerator = accelerate(dispatch_batches=dispatch)
    loader = accelerator.prepare(DataLoader(Count(16), batch_size=2, num_workers=1, collate_fn=fail_in_a_worker))
    try:
        list(loader)
    except (KeyError, RuntimeError) as error:
        return type(error).__name__, "fail_in_a_worker" in str(error)


@pytest.mark.parametrize("dispatch", [False, True])
def test_a_failing_worker_stops_every_rank(pair, dispatch):
    found = pair.run(read_what_fails, dispatch)
    assert sorted(found) == [("KeyError", True), ("RuntimeError", dispatch)]
