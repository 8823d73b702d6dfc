"""All ranks agree on one permutation; no two ranks draw the same augmentation; a rerun repeats both."""

from __future__ import annotations

import random
import threading
from contextlib import contextmanager
from itertools import chain

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    RandomSampler,
    Sampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from accelerate.data_loader import SeedableRandomSampler, prepare_data_loader, skip_first_batches
from accelerate.data_loader.order import (
    AmbientOrder,
    DrawnOrder,
    Order,
    SharedOrder,
    UnknownOrder,
    agree_on,
    mixed,
    order_of,
    seeded,
    with_own_generator,
)
from accelerate.data_loader.shares import DataShard


def indices(loader):
    return [index for batch in loader for index in batch.tolist()]


def epochs_on(on_ranks, ranks, make, epochs=2, **options):
    """Return, epoch by epoch, what each rank sees."""

    def work(runtime):
        loader = prepare_data_loader(make(), runtime=runtime, even_batches=False, **options)
        return [indices(loader) for _ in range(epochs)]

    return list(zip(*on_ranks(ranks, work), strict=True))


@pytest.fixture
def one_at_a_time(monkeypatch):
    """Let the threads that stand for ranks use the global generators one after the other, as processes do anyway."""
    lock = threading.Lock()

    @contextmanager
    def locked(seed):
        with lock, seeded(seed):
            yield

    monkeypatch.setattr("accelerate.data_loader.order.seeded", locked)


class OwnRandom(RandomSampler):
    """A random sampler of other people, that draws from its generator."""


class OwnBatches(BatchSampler):
    """A batch sampler of other people with a generator of its own."""

    def __init__(self, generator):
        super().__init__(range(12), 2, False)
        self.generator = generator

    def __iter__(self):
        order = torch.randperm(12, generator=self.generator).tolist()
        return iter([order[place : place + 2] for place in range(0, 12, 2)])


def generator():
    """Return a generator that is in another state on every rank."""
    return torch.Generator().manual_seed(random.getrandbits(30))


class ByHand(Sampler):
    """A sampler of other people that draws from any global generator."""

    def __init__(self, draw):
        self.draw = draw

    def __iter__(self):
        return iter(self.draw())

    def __len__(self):
        return 12


def drawn_by_python():
    order = list(range(12))
    random.shuffle(order)
    return order


SHUFFLED = {
    "by hand, torch": lambda: DataLoader(range(12), batch_size=2, sampler=ByHand(lambda: torch.randperm(12).tolist())),
    "by hand, python": lambda: DataLoader(range(12), batch_size=2, sampler=ByHand(drawn_by_python)),
    "by hand, numpy": lambda: DataLoader(
        torch.arange(12).reshape(12, 1), batch_size=None, sampler=ByHand(lambda: np.random.permutation(12).tolist())
    ),
    "shuffle": lambda: DataLoader(range(12), batch_size=2, shuffle=True),
    "shuffle, own generator": lambda: DataLoader(range(12), batch_size=2, shuffle=True, generator=generator()),
    "subset": lambda: DataLoader(range(12), batch_size=2, sampler=SubsetRandomSampler(list(range(12)))),
    "weighted": lambda: DataLoader(range(12), batch_size=2, sampler=WeightedRandomSampler([1.0] * 12, 12, False)),
    "subclass": lambda: DataLoader(range(12), batch_size=2, sampler=OwnRandom(range(12))),
    "batch sampler": lambda: DataLoader(
        range(12), batch_sampler=BatchSampler(SubsetRandomSampler(list(range(12))), 2, False)
    ),
    "batch sampler with a generator": lambda: DataLoader(range(12), batch_sampler=OwnBatches(generator())),
    "whole items": lambda: DataLoader(torch.arange(12).reshape(12, 1), batch_size=None, shuffle=True),
}


@pytest.mark.usefixtures("one_at_a_time")
@pytest.mark.parametrize("name", SHUFFLED)
def test_ranks_share_one_permutation_and_epochs_differ(on_ranks, name):
    first, second = epochs_on(on_ranks, 2, SHUFFLED[name])
    assert sorted(chain(*first)) == sorted(chain(*second)) == list(range(12))
    assert first != second


@pytest.mark.parametrize("name", SHUFFLED)
def test_a_rerun_with_the_same_seed_repeats_it(runtime, name):
    def run():
        torch.manual_seed(7)
        random.seed(7)
        np.random.seed(7)
        loader = prepare_data_loader(SHUFFLED[name](), runtime=runtime())
        return [indices(loader) for _ in range(2)]

    assert run() == run()


@pytest.mark.parametrize("own_generator", [False, True])
def test_any_number_of_processes_sees_the_permutation_of_torch(on_ranks, own_generator):
    def make():
        generator = torch.Generator().manual_seed(3) if own_generator else None
        return DataLoader(range(12), batch_size=2, shuffle=True, generator=generator)

    torch.manual_seed(5)
    plain = make()
    expected = [indices(plain) for _ in range(2)]
    torch.manual_seed(5)
    alone = epochs_on(on_ranks, 1, make)
    assert [seen for (seen,) in alone] == expected
    if own_generator:  # the global generator is shared by the threads that stand for ranks here
        for seen, order in zip(epochs_on(on_ranks, 2, make), expected, strict=True):
            rounds = zip(*[[rank[place : place + 2] for place in range(0, 6, 2)] for rank in seen], strict=True)
            assert [index for one_round in rounds for batch in one_round for index in batch] == order


@settings(max_examples=25)
@given(st.integers(1, 30), st.integers(1, 5), st.integers(2, 4), st.integers(0, 3))
def test_a_seedable_order_is_the_same_on_any_number_of_processes(on_ranks, size, batch_size, ranks, epoch):
    def work(runtime):
        loader = prepare_data_loader(
            DataLoader(range(size), batch_size=batch_size, shuffle=True),
            runtime=runtime,
            use_seedable_sampler=True,
            data_seed=11,
            even_batches=False,
        )
        loader.set_epoch(epoch)
        return [batch.tolist() for batch in loader]

    expected = torch.randperm(size, generator=torch.Generator().manual_seed(11 + epoch)).tolist()
    for count in (1, ranks):
        found = on_ranks(count, work)
        longest = max(map(len, found))
        rounds = [[batches[place] for batches in found if place < len(batches)] for place in range(longest)]
        assert [index for one_round in rounds for batch in one_round for index in batch] == expected


def test_ranks_that_were_seeded_differently_agree_on_a_seedable_order(on_ranks, monkeypatch):
    seeds = iter([2**64 - 3, 17])
    monkeypatch.setattr(torch.random, "initial_seed", lambda: next(seeds))

    def work(runtime):
        loader = prepare_data_loader(SHUFFLED["shuffle"](), runtime=runtime, use_seedable_sampler=True)
        return loader.get_sampler().initial_seed, indices(loader)

    (one, seen), (two, others) = on_ranks(2, work)
    assert one == two
    assert sorted(seen + others) == list(range(12))


def test_a_seedable_sampler_repeats_an_epoch_and_moves_on(runtime):
    sampler = SeedableRandomSampler(range(10), data_seed=5)
    first, second = list(sampler), list(sampler)
    sampler.set_epoch(0)
    assert list(sampler) == first != second
    assert first == torch.randperm(10, generator=torch.Generator().manual_seed(5)).tolist()
    assert SeedableRandomSampler(range(3)).initial_seed == torch.random.initial_seed()


def test_the_largest_seed_wraps_around():
    sampler = SeedableRandomSampler(range(5), data_seed=2**64 - 1)
    sampler.set_epoch(1)
    assert list(sampler) == torch.randperm(5, generator=torch.Generator().manual_seed(0)).tolist()


class Noisy(Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, index):
        return index, torch.randint(0, 2**60, ()).item()


@pytest.mark.parametrize("own_generator", [False, True])
def test_workers_draw_differently_on_every_rank_and_in_every_epoch_and_repeat_on_a_rerun(runtime, own_generator):
    def run(rank):
        torch.manual_seed(0)
        generator = torch.Generator().manual_seed(4) if own_generator else None
        user = DataLoader(Noisy(), batch_size=2, shuffle=True, generator=generator, num_workers=1)
        loader = prepare_data_loader(user, runtime=runtime(), num_processes=2, process_index=rank)
        return [[(batch[0].tolist(), batch[1].tolist()) for batch in loader] for _ in range(2)]

    def draws(epochs):
        return [number for epoch in epochs for _, numbers in epoch for number in numbers]

    zero, one = run(0), run(1)
    assert sorted(index for epoch in (zero[0], one[0]) for ids, _ in epoch for index in ids) == list(range(8))
    assert len(set(draws(zero) + draws(one))) == 16
    assert (run(0), run(1)) == (zero, one)


def test_ranks_with_the_same_share_have_the_same_workers_seed(on_ranks):
    def work(runtime):
        own = torch.Generator().manual_seed(runtime.topology.rank)
        user = DataLoader(range(8), batch_size=2, generator=own)
        share = runtime.topology.rank // 2
        loader = prepare_data_loader(user, runtime=runtime, num_processes=2, process_index=share)
        list(loader)
        return loader.base_dataloader.generator.initial_seed()

    seeds = on_ranks(4, work)
    assert seeds[0] == seeds[1] != seeds[2] == seeds[3]


@pytest.mark.parametrize(
    ("sampler", "kind"),
    [
        (RandomSampler(range(3)), DrawnOrder),
        (RandomSampler(range(3), generator=torch.Generator()), SharedOrder),
        (SeedableRandomSampler(range(3), generator=torch.Generator()), Order),
        (range(3), Order),
        (BatchSampler(SequentialSampler(range(3)), 2, False), Order),
        (ByHand(list), UnknownOrder),
    ],
)
def test_each_sampler_has_its_way_to_agree(sampler, kind):
    assert type(order_of(with_own_generator(sampler))) is kind


def test_only_samplers_of_other_people_are_changed_in_place():
    mine, theirs = RandomSampler(range(3)), OwnRandom(range(3))
    assert with_own_generator(mine) is not mine
    assert mine.generator is None
    assert with_own_generator(theirs) is theirs
    assert isinstance(order_of(theirs), DrawnOrder)


def test_numbers_of_64_bits_arrive_whole(on_ranks):
    found = on_ranks(2, lambda runtime: agree_on(runtime.collectives, [2**64 - 1 - runtime.topology.rank, 5]))
    assert [[number % 2**64 for number in each] for each in found] == [[2**64 - 1, 5]] * 2


def test_mixed_seeds_differ_in_their_lower_half():
    assert mixed(3, 0) == 3
    assert len({mixed(seed, rank) % 2**32 for seed in range(50) for rank in range(1, 50)}) == 50 * 49


def test_a_skipped_epoch_has_the_order_of_a_whole_one(runtime):
    def make():
        torch.manual_seed(3)
        return prepare_data_loader(SHUFFLED["shuffle"](), runtime=runtime())

    straight, resumed = make(), make()
    torch.manual_seed(3)
    epochs = [indices(straight), indices(straight)]
    torch.manual_seed(3)
    assert [indices(skip_first_batches(resumed, 2)), indices(resumed)] == [epochs[0][4:], epochs[1]]


def test_shares_are_facts():
    assert DataShard.of(3, 4) == DataShard(3, 4)


@pytest.mark.usefixtures("one_at_a_time")
def test_a_sampler_by_hand_is_resumed_on_several_ranks(on_ranks):
    def work(runtime):
        one, other = (prepare_data_loader(SHUFFLED["by hand, torch"](), runtime=runtime) for _ in range(2))
        batches = iter(one)
        next(batches)
        other.load_state_dict(one.state_dict())
        return [batch.tolist() for batch in batches] == [batch.tolist() for batch in other]

    assert on_ranks(2, work) == [True, True]
    assert isinstance(order_of(ByHand(list), shared=True), AmbientOrder)


def test_an_order_that_may_not_be_found_again_is_named(runtime):
    loader = prepare_data_loader(SHUFFLED["by hand, torch"](), runtime=runtime())
    next(iter(loader))
    loader.load_state_dict(loader.state_dict())
    with pytest.warns(UserWarning, match="made by ByHand"):
        list(loader)


def test_global_generators_are_put_back():
    torch.manual_seed(1), random.seed(1), np.random.seed(1)
    with seeded(5):
        inside = torch.rand(1).item(), random.random(), np.random.rand()
    after = torch.rand(1).item(), random.random(), np.random.rand()
    torch.manual_seed(1), random.seed(1), np.random.seed(1)
    assert after == (torch.rand(1).item(), random.random(), np.random.rand()) != inside
