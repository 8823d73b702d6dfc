"""Data in real processes with real workers: every sample once, in lockstep, from one order that all agree on."""

from __future__ import annotations

import traceback
import warnings
from collections import Counter
from importlib.util import find_spec

import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader, WeightedRandomSampler

from tests.unit.data_loader.streams import OfAnySize

from .conftest import processes
from .data_cases import (
    Augmented,
    Batches,
    Case,
    Count,
    Pair,
    Rich,
    accelerator_with,
    batched,
    counted,
    divided,
    library_stream,
    prepared,
    ragged,
    streamed,
    values,
)

SIZES = (41, 30, 0, 29, 7)

CASES = {
    **{
        f"{length} samples, {options}": counted(length, batch_size=4, **options)
        for length in (1, 7, 16, 33)
        for options in (
            {},
            {"shuffle": True, "split_batches": True},
            {"shuffle": True, "use_seedable_sampler": True},
            {"shuffle": True, "dispatch_batches": True},
        )
    },
    "workers": counted(33, batch_size=4, shuffle=True, num_workers=2),
    "persistent workers": counted(33, batch_size=4, shuffle=True, num_workers=1, persistent_workers=True),
    "workers, dispatched": counted(33, batch_size=4, num_workers=2, dispatch_batches=True),
    "whole items": counted(7, batch_size=None),
    "whole items, dispatched": counted(7, batch_size=None, dispatch_batches=True),
    "batch sampler": batched(33, lambda: Batches(range(33), 4, False)),
    "batch sampler, split": batched(33, lambda: Batches(range(33), 4, False), split_batches=True),
    "batch sampler as sampler": Case(
        lambda: torch.arange(33), range(33), {"batch_size": None, "sampler": BatchSampler(range(33), 4, False)}
    ),
    "batches of any size": batched(20, lambda: OfAnySize(20)),
    "batches of any size, dispatched": batched(20, lambda: OfAnySize(20), dispatch_batches=True),
    **{
        f"stream of {length}, {options}": streamed(length, batch_size=3, **options)
        for length in (0, 1, 8, 25)
        for options in ({}, {"dispatch": True})
    },
    "stream, workers": streamed(25, batch_size=3, num_workers=2),
    "stream, workers, dispatched": streamed(25, True, batch_size=3, num_workers=2),
    "stream of whole items": streamed(7, batch_size=None),
    "sources": divided((4, 4, 4, 4), batch_size=2),
    "sources, uneven": divided((5, 0, 2, 9, 1), batch_size=2),
    "sources, uneven, workers": divided((5, 0, 2, 9, 1), batch_size=2, num_workers=2),
    "sources, most are empty": divided((0, 0, 0, 3), batch_size=2),
}
if find_spec("datasets") is not None:
    EXPECTED = [100 * number + index for number, size in enumerate(SIZES) for index in range(size)]
    CASES |= {
        f"library stream, {'shuffled' if shuffled else 'in order'}, {loading}, {config}": Case(
            lambda shuffled=shuffled: library_stream(SIZES, shuffled),
            EXPECTED,
            {"batch_size": 4, **loading},
            None,
            config,
        )
        for shuffled in (False, True)
        for loading, config in (
            ({}, {"dispatch_batches": False}),
            ({"num_workers": 2}, {"dispatch_batches": False}),
            ({}, {"dispatch_batches": True}),
            ({"batch_size": 8}, {"dispatch_batches": False, "split_batches": True}),
        )
    }


def see_everything():
    """Return, for each case: what is gathered in two epochs, the batch sizes of this rank, and what len() announced."""
    warnings.filterwarnings("ignore", message="Ranks .* ran out of data")
    found = {}
    for name, case in CASES.items():
        accelerator, loader = prepared(case)
        gathered, sizes, ends = [], [], []
        for epoch in range(2):
            ends.append([])
            for batch in loader:
                sizes.append(len(values(batch)) if case.loading.get("batch_size", 1) else 1)
                ends[epoch].append(accelerator.gradient_state.end_of_dataloader)
                gathered += values(
                    accelerator.gather_for_metrics(
                        torch.as_tensor(batch).reshape(-1) if not isinstance(batch, dict) else batch
                    )
                )
        try:
            length = len(loader)
        except TypeError:
            length = None
        found[name] = gathered, sizes, ends, length
    return found


@pytest.mark.parametrize("size", [1, 2, 4], ids="processes={}".format)
def test_every_sample_is_gathered_once_and_ranks_take_as_many_steps(size):
    found = processes(size).run(see_everything)
    for name, case in CASES.items():
        expected = Counter([*case.samples, *case.samples])
        for gathered, sizes, ends, length in (of_rank[name] for of_rank in found):
            assert Counter(gathered) == expected, name
            assert sizes == found[0][name][1] or "any size" in name or size == 1, name
            for steps in ends:
                assert steps == [False] * (len(steps) - 1) + [True] * bool(steps), name
                assert length in (None, len(steps)), name


def read_shuffled(seed):
    """Return the samples of this rank in two epochs, with what was drawn for them, for several loaders."""
    from accelerate.utils import set_seed

    accelerator = accelerator_with()
    if seed is not None:
        set_seed(seed)
    loaders = accelerator.prepare(
        DataLoader(Augmented(24), batch_size=3, shuffle=True, num_workers=2),
        DataLoader(
            Augmented(24), batch_size=3, shuffle=True, num_workers=2, generator=torch.Generator().manual_seed(4)
        ),
        DataLoader(range(24), batch_size=3, sampler=WeightedRandomSampler(torch.ones(24), 24, replacement=False)),
        DataLoader(range(24), batch_size=3, sampler=ByHand(24)),
    )

    def rows(batch):
        return (
            batch.tolist()
            if isinstance(batch, torch.Tensor)
            else list(zip(*map(torch.Tensor.tolist, batch), strict=True))
        )

    return [[[row for batch in loader for row in rows(batch)] for _ in range(2)] for loader in loaders]


class ByHand:
    """A sampler that draws from torch's global generator."""

    def __init__(self, size):
        self.size = size

    def __len__(self):
        return self.size

    def __iter__(self):
        return iter(torch.randperm(self.size).tolist())


@pytest.mark.parametrize("seed", [5, None])
def test_one_order_for_all_and_augmentation_that_differs_and_repeats(seed):
    found = processes(2).run(read_shuffled, seed)
    for loader, of_ranks in enumerate(zip(*found, strict=True)):
        epochs = list(zip(*of_ranks, strict=True))
        index = (lambda row: row[0]) if loader < 2 else (lambda row: row)
        for ranks in epochs:
            assert sorted(index(row) for rank in ranks for row in rank) == list(range(24))
        assert epochs[0] != epochs[1]
        if loader < 2:
            for kind in (1, 2):
                drawn = [row[kind] for ranks in epochs for rank in ranks for row in rank]
                assert len(set(drawn)) == len(drawn), "no two ranks, workers or epochs draw the same"
    if seed is not None:
        assert processes(2).run(read_shuffled, seed) == found


def dispatch_all():
    """Return the batches of this rank of data that is no plain tensor."""
    cases = [
        (Rich(7), {"batch_size": 2}, {}),
        (range(7), {"batch_size": 2, "collate_fn": ragged, "num_workers": 1}, {}),
        (Rich(5), {"batch_size": None}, {}),
        (Rich(6), {"batch_size": 4}, {"split_batches": True}),
    ]
    return [
        list(accelerator_with(dispatch_batches=True, **config).prepare(DataLoader(data, **loading)))
        for data, loading, config in cases
    ]


def test_batches_of_any_kind_are_dispatched():
    (rich0, ragged0, whole0, split0), (rich1, ragged1, whole1, split1) = processes(2).run(dispatch_all)
    assert [batch["ids"][:, 0].tolist() for batch in rich0] == [[0, 1], [4, 5]]
    assert [batch["ids"][:, 0].tolist() for batch in rich1] == [[2, 3], [6, 0]]
    assert rich1[1]["name"] == ["sample 6", "sample 0"]
    assert [flag.tolist() for flag in rich1[1]["flags"]] == [[True, True], [6.0, 0.0]]
    assert [type(batch) for batch in ragged0 + ragged1] == [Pair] * 4
    assert [batch.x.shape[1] for batch in ragged0] == [2, 6]
    assert [batch.names for batch in ragged1] == [[2, 3], [6]]
    assert [batch["name"] for batch in whole0] == ["sample 0", "sample 2", "sample 4"]
    assert [batch["name"] for batch in whole1] == ["sample 1", "sample 3", "sample 0"]
    assert [batch["name"] for batch in split0 + split1] == [
        ["sample 0", "sample 1"],
        ["sample 4"],
        ["sample 2", "sample 3"],
        ["sample 5"],
    ]


def read_in_a_mesh():
    """Return what this rank of two replicas, each of two ranks, reads of a map-style, a streamed and a sent dataset."""
    from torch.distributed.device_mesh import init_device_mesh

    from accelerate.data_loader import prepare_data_loader

    accelerator = accelerator_with()
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp_replicate", "tp"))
    found = []
    for data, options in (
        (Augmented(13), {}),
        (Augmented(13), {"dispatch_batches": True, "put_on_device": True}),
        (Count(13), {}),
        (Count(13), {"dispatch_batches": True, "put_on_device": True}),
    ):
        user = DataLoader(data, batch_size=2, num_workers=1, shuffle=True if isinstance(data, Augmented) else None)
        loader = prepare_data_loader(user, torch_device_mesh=mesh, runtime=accelerator.runtime, **options)
        batches, gathered = [], []
        for batch in loader:
            index = batch if isinstance(batch, torch.Tensor) else batch[0]
            gathered += accelerator.gather_for_metrics(index).tolist()
            batches.append(index.tolist() if batch is index else [each.tolist() for each in batch])
        found.append((batches, gathered))
    return found


def test_ranks_that_share_a_model_see_the_same_batches():
    found = processes(4).run(read_in_a_mesh)
    for ranks in zip(*found, strict=True):
        batches = [each for each, _ in ranks]
        assert batches[0] == batches[1] != batches[2] == batches[3]
        for _, gathered in ranks:
            assert Counter(gathered) == Counter([*range(13), *range(13)]), "once for each rank of a replica"


def misbehave():
    """Return what this rank is told of data that is not as it should be."""
    found = {}
    accelerator = accelerator_with()
    try:
        accelerator.prepare(DataLoader(range(10 + accelerator.process_index), batch_size=2))
    except ValueError as error:
        found["lengths"] = str(error)
    accelerator = accelerator_with(dispatch_batches=False)
    loader = accelerator.prepare(DataLoader(Count(30 - 20 * accelerator.process_index), batch_size=2))
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        found["ends"] = []
        for batch in loader:
            flag = torch.ones(1)
            torch.distributed.all_reduce(flag)  # what a training step does
            found["ends"].append((len(batch), flag.item(), accelerator.gradient_state.end_of_dataloader))
    found["said"] = [str(each.message) for each in said]
    for name, data, dispatch in (("map", range(16), False), ("sent", Count(16), True), ("stream", Count(16), False)):
        accelerator = accelerator_with(dispatch_batches=dispatch)
        loader = accelerator.prepare(DataLoader(data, batch_size=2, num_workers=1, collate_fn=fail_in_a_worker))
        try:
            list(loader)
        except (KeyError, RuntimeError) as error:
            found[name] = type(error).__name__, "".join(traceback.format_exception(error)).count("raise KeyError(")
    return found


def fail_in_a_worker(samples):
    if 6 in samples:
        raise KeyError("no such label")
    return samples


def test_bad_data_is_named_and_stops_no_rank_for_ever():
    one, two = processes(2).run(misbehave)
    assert "10 on rank 0; 11 on rank 1" in one["lengths"]
    assert one["lengths"] == two["lengths"]
    assert one["ends"] == two["ends"] == [(2, 2.0, step == 7) for step in range(8)]
    assert len(one["said"]) == 1
    assert "Ranks [1] ran out of data after 3 steps" in one["said"][0]
    assert two["said"] == []
    assert "map" not in one, "rank 0 does not read sample 6"
    assert two["map"] == ("KeyError", 1)
    for name in ("sent", "stream"):
        assert sorted([one[name][0], two[name][0]]) == ["KeyError", "RuntimeError"], name
        assert dict((one[name], two[name]))["KeyError"] == 1
