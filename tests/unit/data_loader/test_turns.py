"""Loaders whose sequences are divided: who gets which part, where a pass stands, and what can't be divided."""

from __future__ import annotations

import re

import pytest
import torch
from torch.utils.data import DataLoader

from accelerate.comm.fake import FakeWorld
from accelerate.data_loader import prepare_data_loader, skip_first_batches
from accelerate.data_loader.turns import TurnLoader, TurnPass, problem_with
from tests.unit.data_loader.conftest import runtime_of
from tests.unit.deepspeed_double import install

LENGTH = 4


@pytest.fixture(autouse=True)
def _deepspeed(monkeypatch):
    install(monkeypatch)


def samples(count, **more):
    """Return samples whose tokens tell them apart: 10 * sample + position."""
    tokens = [10 * number + torch.arange(LENGTH) for number in range(count)]
    return [{"input_ids": each, "labels": each.clone(), **more} for each in tokens]


def turns(ranks, count=8, batch_size=1, data=None, split=False, **options):
    """Return the loader of one rank, and its runtime."""
    runtime = runtime_of(ranks)
    loader = DataLoader(samples(count) if data is None else data, batch_size=batch_size)
    prepared = prepare_data_loader(loader, runtime=runtime, split_batches=split, put_on_device=True)
    return TurnLoader(prepared, ranks, ranks, **options), runtime


def first_tokens(loader):
    return [batch["input_ids"][:, 0].tolist() for batch in loader]


def test_all_ranks_work_on_the_batch_of_one_after_the_other():
    def work(ranks):
        loader, _ = turns(ranks, count=4)
        return len(loader), list(loader)

    (length, first), (_, second) = FakeWorld(2).run(work)
    assert length == len(first) == 4
    for number, (one, other) in enumerate(zip(first, second, strict=True)):
        for batch, places in ((one, [0, 1]), (other, [2, 3])):
            assert batch.keys() == {"input_ids", "position_ids", "shift_labels"}
            assert batch["input_ids"].tolist() == [[10 * number + place for place in places]]
            assert batch["position_ids"].tolist() == [places]
        assert one["shift_labels"].tolist() == [[10 * number + 1, 10 * number + 2]]  # the first one of the other's part
        assert other["shift_labels"].tolist() == [[10 * number + 3, -100]]


def test_labels_that_are_shifted_already_stay_so():
    def work(ranks):
        data = samples(2)
        for each in data:
            each["shift_labels"] = each.pop("labels") + 5
        loader, _ = turns(ranks, data=data)
        return [batch["shift_labels"].tolist() for batch in loader]

    assert FakeWorld(2).run(work) == [[[[5, 6]], [[15, 16]]], [[[7, 8]], [[17, 18]]]]


def test_shorter_sequences_are_padded_between_cpus():
    def work(ranks):
        data = samples(2, attention_mask=torch.ones(LENGTH, dtype=torch.long))
        data[1] = {name: value[:2] for name, value in data[1].items()}
        loader, _ = turns(ranks, data=data)
        return list(loader)[1]

    parts = FakeWorld(2).run(work)
    whole = {name: torch.cat([part[name] for part in parts], dim=1).tolist() for name in parts[0]}
    assert whole == {
        "input_ids": [[10, 11, 0, 0]],
        "shift_labels": [[11, -100, -100, -100]],
        "position_ids": [[0, 1, 2, 3]],
        "attention_mask": [[1, 1, 0, 0]],
    }


def test_slices_of_one_batch_are_put_together():
    def work(ranks):
        loader, _ = turns(ranks, count=8, batch_size=4, split=True)
        return len(loader), loader.total_batch_size, first_tokens(loader)

    assert FakeWorld(2).run(work) == [
        (2, 4, [[0, 10, 20, 30], [40, 50, 60, 70]]),
        (2, 4, [[2, 12, 22, 32], [42, 52, 62, 72]]),
    ]


def test_a_pass_says_where_it_stands():
    def work(ranks):
        loader, runtime = turns(ranks, count=4)
        state, seen = runtime.gradient_state, []
        for _ in loader:
            driving = state.driving(0)
            seen.append((state.end_of_dataloader, loader.end_of_dataloader, type(state.active), type(driving)))
        return seen, list(state.running), loader.total_batch_size

    for seen, running, size in FakeWorld(2).run(work):
        assert [ends for ends, *_ in seen] == [other for _, other, *_ in seen] == [False, False, False, True]
        assert {kind for *_, active, driving in seen for kind in (active, driving)} == {TurnPass}
        assert (running, size) == ([], 1)


def test_a_pass_that_is_broken_off_leaves_nothing():
    def work(ranks):
        loader, runtime = turns(ranks)
        for _ in loader:
            break
        return list(runtime.gradient_state.running), first_tokens(loader)

    for running, tokens in FakeWorld(2).run(work):
        assert running == []
        assert len(tokens) == 8


@pytest.mark.parametrize("skip", range(8))
def test_batches_are_skipped_also_inside_of_a_turn(skip):
    def work(ranks):
        whole, skipped = (turns(ranks)[0] for _ in range(2))
        later = skip_first_batches(skipped, skip)
        return first_tokens(whole)[skip:], first_tokens(later), len(later), first_tokens(skipped)

    for expected, found, length, after in FakeWorld(2).run(work):
        assert found == expected
        assert (length, len(after)) == (8 - skip, 8)


@pytest.mark.parametrize("place", range(1, 8))
def test_a_saved_place_is_found_again_inside_of_a_turn(place):
    def work(ranks):
        one, other = (turns(ranks)[0] for _ in range(2))
        seen = []
        for batch in one:
            seen.append(batch["input_ids"][:, 0].tolist())
            if len(seen) == place:
                other.load_state_dict(one.state_dict())
        return seen, first_tokens(other), first_tokens(other)

    for seen, rest, next_epoch in FakeWorld(2).run(work):
        assert rest == seen[place:]
        assert next_epoch == seen


def test_another_number_of_processes_begins_with_a_whole_batch():
    def save(ranks):
        loader, _ = turns(ranks)
        for number, _ in enumerate(loader, 1):
            if number == 5:  # of two batches that each rank has read, and one of the third ones
                return loader.state_dict()
        raise AssertionError

    state = FakeWorld(2).run(save)[0]
    assert (state["batches"], state["part"]) == (2, 1)

    def go_on(ranks):
        loader, _ = turns(ranks)
        loader.load_state_dict(state)
        return first_tokens(loader)

    assert FakeWorld(4).run(go_on)[0] == [[40], [50], [60], [70]]


def test_epochs_and_attributes_are_those_of_the_loader():
    def work(ranks):
        loader, _ = turns(ranks, count=4)
        loader.set_epoch(3)
        return (
            loader.iteration,
            loader.dataset is loader.base_dataloader.dataset,
            first_tokens(loader),
            loader.iteration,
        )

    for before, same, tokens, after in FakeWorld(2).run(work):
        assert (before, same, len(tokens), after) == (3, True, 4, 4)


TOKENS = torch.zeros(2, LENGTH, dtype=torch.long)
BATCH = {"input_ids": TOKENS, "labels": TOKENS}
PACKED = torch.tensor([[0, 1, 0, 1]] * 2)
REFUSED = {
    "no mapping": ([TOKENS], {}, "a batch that is a list"),
    "no labels": ({"input_ids": TOKENS}, {}, "input_ids and labels"),
    "other shapes": ({**BATCH, "weights": torch.zeros(2)}, {}, r"input_ids \[2, 4\] and weights \[2\]"),
    "three dims": ({"input_ids": TOKENS[None], "labels": TOKENS[None]}, {}, r"input_ids \[1, 2, 4\]"),
    "length": (BATCH, {"size": 3}, "4 tokens for sp_size=3(.|\n)*a length of 3 or 6"),
    "short": (BATCH, {"size": 8}, "a length of 8"),
    "fixed length": (BATCH, {"length": 8}, "sp_seq_length=8"),
    "padding on the left": ({**BATCH, "attention_mask": torch.tensor([[0, 1, 1, 1]] * 2)}, {}, "padding_side"),
    "packed": ({**BATCH, "position_ids": PACKED}, {}, "packed into one row"),
}


@pytest.mark.parametrize(("batch", "facts", "text"), REFUSED.values(), ids=REFUSED.keys())
def test_batches_that_cannot_be_divided(batch, facts, text):
    problem = problem_with(batch, **{"size": 2, "length": None, "packs": False, **facts})
    assert problem is not None
    assert re.search(text, problem)
    assert [line.partition(":")[0] for line in problem.splitlines()] == ["Given", "Why not", "Allowed", "What to do"]


@pytest.mark.parametrize(
    ("batch", "packs"),
    [
        (BATCH, False),
        ({**BATCH, "attention_mask": torch.tensor([[1, 1, 1, 0]] * 2), "name": "x"}, False),
        ({**BATCH, "position_ids": PACKED}, True),
    ],
)
def test_batches_that_can(batch, packs):
    assert problem_with(batch, 2, LENGTH, packs) is None


def refused(ranks, data, **options):
    """Return what reading all of `data` raises on this rank."""
    loader, _ = turns(ranks, data=data, **options)
    with pytest.raises((ValueError, RuntimeError)) as caught:
        first_tokens(loader)
    return str(caught.value)


def test_a_batch_that_one_rank_cannot_divide_is_an_error_on_all():
    data = samples(2)
    data[1] = {name: value[:3] for name, value in data[1].items()}
    first, second = FakeWorld(2).run(lambda ranks: refused(ranks, data))
    assert first == second
    assert "sequences of 3 tokens for sp_size=2" in first


def test_batches_that_differ_between_ranks_are_refused():
    data = samples(2)
    data[1]["more"] = data[1]["input_ids"]
    for text in FakeWorld(2).run(lambda ranks: refused(ranks, data)):
        assert "batches with other tensors" in text


def uneven(ranks, count, batch_size=1):
    runtime = runtime_of(ranks)
    loader = DataLoader(samples(count), batch_size=batch_size)
    prepared = prepare_data_loader(loader, runtime=runtime, put_on_device=True, even_batches=False)
    with pytest.raises((ValueError, RuntimeError)) as caught:
        first_tokens(TurnLoader(prepared, ranks, ranks))
    return str(caught.value)


@pytest.mark.parametrize(
    ("count", "size", "text"), [(3, 1, "ended on rank 1"), (3, 2, "batches of 2, 1 rows on the ranks")]
)
def test_ranks_that_read_different_amounts_are_refused(count, size, text):
    for found in FakeWorld(2).run(lambda ranks: uneven(ranks, count, size)):
        assert text in found
