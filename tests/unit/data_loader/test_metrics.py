"""Results of all ranks hold every sample once."""

from __future__ import annotations

import dataclasses
from collections import defaultdict, namedtuple

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from accelerate.data_loader import DataLoaderStateMixin, prepare_data_loader, skip_first_batches
from accelerate.data_loader.metrics import gather_for_metrics

Pair = namedtuple("Pair", "ids names")


@dataclasses.dataclass
class Output:
    ids: torch.Tensor
    names: list


class Chosen:
    def __init__(self, batches):
        self.batches = batches

    def __iter__(self):
        return iter(self.batches)

    def __len__(self):
        return len(self.batches)


def evaluate(runtime, loader, of_batch=lambda batch: batch, **options):
    """Return what every step gathers."""
    prepared = prepare_data_loader(loader, runtime=runtime, **options)
    return [gather(runtime, of_batch(batch)) for batch in prepared]


def gather(runtime, data, **options):
    return gather_for_metrics(runtime.collectives, runtime.gradient_state, data, **options)


@settings(max_examples=60)
@given(st.integers(1, 40), st.integers(1, 9), st.integers(1, 4), st.booleans())
def test_every_sample_once_for_any_size(on_ranks, size, batch_size, ranks, split):
    batch_size = batch_size * ranks if split else batch_size

    def work(runtime):
        found = evaluate(runtime, DataLoader(range(size), batch_size=batch_size), split_batches=split)
        return torch.cat(found).tolist()

    assert on_ranks(ranks, work) == [list(range(size))] * ranks


@settings(max_examples=40)
@given(st.integers(1, 40), st.integers(1, 9), st.integers(1, 4), st.integers(0, 5))
def test_every_sample_once_after_skipping(on_ranks, size, batch_size, ranks, skip):
    def work(runtime):
        loader = prepare_data_loader(DataLoader(range(size), batch_size=batch_size), runtime=runtime)
        found = [gather(runtime, batch) for batch in skip_first_batches(loader, skip)]
        return torch.cat(found).tolist() if found else []

    assert on_ranks(ranks, work) == [list(range(size))[skip * batch_size * ranks :]] * ranks


STRUCTURES = {
    "tensor": lambda ids: ids,
    "rows of two": lambda ids: torch.stack([ids, ids], 1),
    "two rows per sample": lambda ids: ids.repeat_interleave(2),
    "names": lambda ids: [f"s{i}" for i in ids.tolist()],
    "tuple of names": lambda ids: tuple(f"s{i}" for i in ids.tolist()),
    "records": lambda ids: [{"id": i, "box": torch.tensor([i] * (i % 3))} for i in ids.tolist()],
    "dict": lambda ids: {"ids": ids, "names": [f"s{i}" for i in ids.tolist()]},
    "defaultdict": lambda ids: defaultdict(list, ids=ids, more={"names": [str(i) for i in ids.tolist()]}),
    "namedtuple": lambda ids: Pair(ids, [f"s{i}" for i in ids.tolist()]),
    "dataclass": lambda ids: Output(ids, [f"s{i}" for i in ids.tolist()]),
    "columns": lambda ids: [ids, [f"s{i}" for i in ids.tolist()]],
    "columns of names": lambda ids: ([str(i) for i in ids.tolist()], [f"s{i}" for i in ids.tolist()]),
    "array": lambda ids: {"ids": ids.numpy()},
}


def plain(data):
    """Return nested data with lists in the place of tensors and arrays, so that it can be compared."""
    if isinstance(data, (torch.Tensor, np.ndarray)):
        return data.tolist()
    if isinstance(data, dict):
        return {key: plain(value) for key, value in data.items()}
    if dataclasses.is_dataclass(data):
        return plain(vars(data))
    return [plain(each) for each in data] if isinstance(data, (list, tuple)) else data


@pytest.mark.parametrize("name", STRUCTURES)
def test_the_structure_stays(on_ranks, name):
    make = STRUCTURES[name]

    def work(runtime):
        return evaluate(runtime, DataLoader(range(7), batch_size=2), make)

    for found in on_ranks(3, work):
        expected = [make(torch.arange(6)), make(torch.arange(6, 7))]
        assert list(map(plain, found)) == list(map(plain, expected))
        assert [type(each) for each in found] == [type(each) for each in expected]


def test_one_value_per_rank(on_ranks):
    def work(runtime):
        def results(ids):
            return {"loss": ids.float().mean(), "text": "abc", "number": 1.5, "row": ids[:1].float()}

        return evaluate(runtime, DataLoader(range(5), batch_size=2), results)

    first, last = on_ranks(2, work)[0]
    assert (first["loss"].tolist(), first["text"], first["number"]) == ([0.5, 2.5], ["abc", "abc"], [1.5, 1.5])
    assert (last["loss"].tolist(), last["text"], last["row"].tolist()) == ([2.0], ["abc"], [4.0])


def test_tensors_as_objects_become_rows(on_ranks):
    def work(runtime):
        loader = prepare_data_loader(DataLoader(range(5), batch_size=2), runtime=runtime)
        return [
            gather(runtime, {"ids": ids, "boxes": [torch.ones(i) for i in ids.tolist()]}, use_gather_object=True)
            for ids in loader
        ]

    first, last = on_ranks(2, work)[1]
    assert plain(first) == {"ids": [0, 1, 2, 3], "boxes": [[], [1], [1, 1], [1, 1, 1]]}
    assert plain(last) == {"ids": [4], "boxes": [[1, 1, 1, 1]]}


def test_one_process_gets_its_own_object(runtime):
    alone, data = runtime(), {"names": ["a"], "loss": 3}
    assert gather(alone, data) is data


def test_nothing_is_cut_before_the_end_or_outside_of_a_loader(on_ranks):
    def work(runtime):
        loader = prepare_data_loader(DataLoader(range(5), batch_size=2), runtime=runtime)
        for batch in loader:
            first = gather(runtime, batch).tolist()
            break
        return first, gather(runtime, torch.arange(2)).tolist()

    assert on_ranks(2, work) == [([0, 1, 2, 3], [0, 1, 0, 1])] * 2


def test_an_evaluation_inside_of_training_does_not_cut_training_batches(on_ranks):
    def work(runtime):
        train = prepare_data_loader(DataLoader(range(16), batch_size=2), runtime=runtime)
        val = prepare_data_loader(DataLoader(range(100, 105), batch_size=2), runtime=runtime)
        sizes, evaluated = [], []
        for step, batch in enumerate(train):
            if step == 1:
                evaluated = [i for inner in val for i in gather(runtime, inner).tolist()]
            sizes.append(len(gather(runtime, batch)))
        return sizes, evaluated

    assert on_ranks(2, work) == [([4, 4, 4, 4], [100, 101, 102, 103, 104])] * 2


@pytest.mark.parametrize("ranks", [2, 3])
def test_batches_of_any_size(on_ranks, ranks):
    batches = [[0, 1], [2], [3, 4, 5], [6], [7, 8]]

    def work(runtime):
        steps = evaluate(
            runtime, DataLoader(range(9), batch_sampler=Chosen(batches)), lambda ids: {"i": ids, "s": ids.sum()}
        )
        names = evaluate(
            runtime, DataLoader(range(9), batch_sampler=Chosen(batches)), lambda ids: [str(i.item()) for i in ids]
        )
        return torch.cat([step["i"] for step in steps]).tolist(), [name for step in names for name in step]

    assert on_ranks(ranks, work) == [(list(range(9)), [str(i) for i in range(9)])] * ranks


def test_items_that_are_whole_batches(on_ranks):
    def work(runtime):
        items = [torch.full((i + 1,), i) for i in range(5)]
        return torch.cat(evaluate(runtime, DataLoader(items, batch_size=None))).tolist()

    assert on_ranks(2, work) == [[0, 1, 1, 2, 2, 2, 3, 3, 3, 3, 4, 4, 4, 4, 4]] * 2


def test_uneven_batches_of_all_ranks_are_put_together(on_ranks):
    def work(runtime):
        return torch.cat(evaluate(runtime, DataLoader(range(10), batch_size=3), even_batches=False)).tolist()

    assert on_ranks(2, work) == [list(range(10))] * 2


def test_ranks_without_a_batch_are_not_waited_for(on_ranks):
    def work(runtime):
        return evaluate(runtime, DataLoader(range(8), batch_size=3), even_batches=False)

    with pytest.raises(RuntimeError, match=r"ranks \[1\] have no batch left"):
        on_ranks(2, work)


def test_rows_that_cant_be_assigned_to_samples_are_kept_with_a_warning(on_ranks):
    def work(runtime):
        return evaluate(runtime, DataLoader(range(5), batch_size=2), lambda ids: torch.cat([ids, ids[:1]]))

    with pytest.warns(UserWarning, match="can't tell which rows"):
        found = on_ranks(2, work)[0]
    assert found[-1].tolist() == [4, 0, 4]


def test_a_loader_of_other_people_cuts_from_the_end(on_ranks):
    class Own(DataLoaderStateMixin):
        def __init__(self, runtime):
            self.gradient_state = runtime.gradient_state
            self.dataset, self.total_batch_size = range(5), 4

        def __iter__(self):
            self.begin()
            yield torch.arange(2)
            self.end_of_dataloader = True
            yield torch.tensor([4, 0])
            self.end()

    def work(runtime):
        return [
            (gather(runtime, batch).tolist(), gather(runtime, [str(i) for i in batch.tolist()]))
            for batch in Own(runtime)
        ]

    assert on_ranks(2, work)[0] == [([0, 1, 0, 1], ["0", "1", "0", "1"]), ([4], ["4"])]
