"""Messages of rank 0: whatever changes between steps, every rank gets its part as it was read, in few messages."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from accelerate.comm.fake import FakeWorld
from accelerate.comm.tree import leaves_with_paths
from accelerate.data_loader.courier import FIRST_MESSAGE, Courier
from accelerate.data_loader.dealing import Tail
from accelerate.data_loader.parts import Step

DTYPES = [torch.float32, torch.int64, torch.bool, torch.bfloat16, torch.uint8, torch.complex64]

tensors = st.builds(
    lambda shape, dtype, start: torch.arange(start, start + torch.Size(shape).numel()).to(dtype).view(shape),
    st.lists(st.integers(0, 9), max_size=3),
    st.sampled_from(DTYPES),
    st.integers(0, 99),
)
plain = st.one_of(tensors, tensors, st.text(max_size=3), st.integers(), st.none())
batches = st.recursive(
    plain,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(st.sampled_from("abcd"), inner, max_size=4),
        st.tuples(inner, inner),
    ),
    max_leaves=8,
)


def same(one, other):
    """Tell whether two batches are alike in structure, types and values."""
    pairs = list(zip(leaves_with_paths(one), leaves_with_paths(other), strict=True))
    return all(
        path == its_path
        and type(leaf) is type(its_leaf)
        and (leaf.dtype is its_leaf.dtype and torch.equal(leaf, its_leaf) if isinstance(leaf, torch.Tensor) else True)
        and (isinstance(leaf, torch.Tensor) or leaf == its_leaf)
        for (path, leaf), (its_path, its_leaf) in pairs
    )


def dispatched(steps, ranks):
    """Return what each rank receives, and how many messages each step took."""

    def work(collectives):
        courier = Courier(collectives, collectives.rank, range(1, ranks))
        sent, broadcast = [], collectives.broadcast
        collectives.broadcast = lambda *args: sent.append(None) or broadcast(*args)
        received, messages = [], []
        for step in steps:
            before = len(sent)
            if collectives.rank:
                received.append(courier.receive())
            else:
                courier.send(step)
            messages.append(len(sent) - before)
        if collectives.rank:
            assert courier.receive() is None
        else:
            courier.close()
        return received, messages

    return FakeWorld(ranks).run(work)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.lists(batches, min_size=3, max_size=3), min_size=1, max_size=6))
def test_parts_of_any_kind_arrive_however_they_change_from_step_to_step(steps):
    found = dispatched([Step(parts, None, 1) for parts in steps], 3)
    for rank in (1, 2):
        received, messages = found[rank]
        assert all(same(step.parts[0], parts[rank]) for step, parts in zip(received, steps, strict=True))
        assert max(messages) <= 2


def batch(rows, width, note=None):
    found = {"ids": torch.arange(rows * width).view(rows, width), "mask": torch.ones(rows, width)}
    return found if note is None else {**found, "note": note}


WIDE = FIRST_MESSAGE
CHANGES = {
    "nothing changes": ([batch(4, 8)] * 5, [1, 1, 1, 1, 1]),
    "one grows beyond the message": ([batch(4, 8), batch(4, WIDE), batch(4, WIDE), batch(4, 8), batch(4, 8)], None),
    "a ragged tail": ([batch(4, 8), batch(4, 8), batch(1, 8)], None),
    "a leaf comes and goes": ([batch(4, 8), batch(4, 8, "a"), batch(4, 8), batch(4, 8)], None),
    "texts differ": ([batch(4, 8, str(number)) for number in range(4)], None),
    "every width differs": ([batch(2, 3 + 5 * number) for number in range(6)], None),
    "nothing to send": ([{"a": []}, torch.empty(0, 3), None], None),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_costs_a_message_more_at_most(name):
    batches, expected = CHANGES[name]
    ranks = dispatched([Step([None, each], None, 1) for each in batches], 2)
    received, messages = ranks[1]
    assert all(same(step.parts[0], each) for step, each in zip(received, batches, strict=True))
    assert ranks[0][1] == messages
    assert messages == expected if expected else max(messages) <= 2


def test_what_was_received_is_not_overwritten_by_the_next_message():
    steps = [Step([None, torch.full((4,), number)], None, 4) for number in range(3)]
    received, _ = dispatched(steps, 2)[1]
    assert [step.parts[0].tolist() for step in received] == [[number] * 4 for number in range(3)]


def test_what_is_real_travels_with_the_step_that_it_is_about():
    steps = [Step([None, torch.ones(2)], None, 4), Step([None, torch.ones(2)], Tail((2, 1), 3, 2), 3)]
    received, _ = dispatched([*steps, steps[0]], 2)[1]
    assert [(step.tail, step.rows) for step in received] == [(None, 4), (Tail((2, 1), 3, 2), 3), (None, 4)]
