"""One pass: what it yields, what it says about itself meanwhile, and what is left when it ends."""

from __future__ import annotations

import copy
import gc
import pickle

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, TensorDataset

from accelerate.data_loader import DataLoaderShard, prepare_data_loader, skip_first_batches
from accelerate.state.gradient import GradientState


def prepared(runtime, *args, **options):
    settings = {name: options.pop(name) for name in list(options) if name in ("batch_size", "shuffle", "drop_last")}
    return prepare_data_loader(DataLoader(*args, **settings), runtime=runtime, **options)


def lists(loader):
    return [batch.tolist() for batch in loader]


class Fails(Dataset):
    def __len__(self):
        return 6

    def __getitem__(self, index):
        if index == 4:
            raise KeyError("sample 4")
        return index


def test_the_last_batch_is_known_when_it_comes(runtime):
    alone = runtime()
    loader, state = prepared(alone, range(7), batch_size=3), alone.gradient_state
    seen = [(len(batch), loader.end_of_dataloader, state.end_of_dataloader, state.remainder) for batch in loader]
    assert seen == [(3, False, False, 1), (3, False, False, 1), (1, True, True, 1)]
    assert (state.in_dataloader, loader.iteration) == (False, 1)


@pytest.mark.parametrize(
    ("size", "options", "remainder"),
    [
        (12, {}, 0),
        (10, {}, 4),
        (10, {"drop_last": True}, -1),
        (9, {"even_batches": False}, 3),
        (7, {"split_batches": True, "batch_size": 4}, 3),
    ],
)
def test_the_remainder_is_what_is_real_of_the_last_step(on_ranks, size, options, remainder):
    options = {"batch_size": 3, **options}

    def work(runtime):
        loader = prepared(runtime, range(size), **options)
        return [runtime.gradient_state.remainder for _ in loader][-1]

    assert on_ranks(2, work)[0] == remainder


def test_a_custom_batch_sampler_that_tells_no_size_has_a_remainder_at_the_end(on_ranks):
    class Batches:
        def __iter__(self):
            return iter([[0, 1], [2], [3]])

        def __len__(self):
            return 3

    def work(runtime):
        loader = prepare_data_loader(DataLoader(range(4), batch_sampler=Batches()), runtime=runtime)
        return [runtime.gradient_state.remainder for _ in loader], loader.total_batch_size

    assert on_ranks(2, work) == [([-1, 1], None)] * 2


def test_a_sampler_that_draws_fewer_samples_than_the_dataset_has(on_ranks):
    def work(runtime):
        sampler = torch.utils.data.SubsetRandomSampler(list(range(50, 55)), generator=torch.Generator().manual_seed(1))
        loader = prepare_data_loader(DataLoader(range(100), batch_size=2, sampler=sampler), runtime=runtime)
        remainders = [runtime.gradient_state.remainder for _ in loader]
        return remainders, loader.total_dataset_length

    assert on_ranks(2, work) == [([1, 1], 100)] * 2


def test_breaking_off_leaves_nothing_behind(runtime):
    alone = runtime()
    loader = prepared(alone, range(9), batch_size=3)
    for _ in loader:
        break
    gc.collect()
    assert not alone.gradient_state.in_dataloader
    assert loader.iteration == 0
    assert lists(loader) == [[0, 1, 2], [3, 4, 5], [6, 7, 8]]


def test_an_error_in_the_data_arrives_once_and_leaves_nothing_behind(runtime):
    alone = runtime()
    loader, got = prepared(alone, Fails(), batch_size=2), []
    with pytest.raises(KeyError, match="sample 4"):
        got.extend(batch.tolist() for batch in loader)
    assert got == [[0, 1]]
    assert not alone.gradient_state.in_dataloader


def test_loaders_can_be_nested_and_zipped(runtime):
    alone = runtime()
    state = alone.gradient_state
    outer, inner = prepared(alone, range(2)), prepared(alone, range(3))
    seen = []
    for _ in outer:
        for _ in inner:
            seen.append((state.active_dataloader is inner, state.end_of_dataloader))
        seen.append((state.active_dataloader is outer, state.end_of_dataloader))
    epoch = [(True, False), (True, False), (True, True)]
    assert seen == [*epoch, (True, False), *epoch, (True, True)]
    assert [(one.tolist(), two.tolist()) for one, two in zip(outer, inner, strict=False)] == [([0], [0]), ([1], [1])]
    assert not state.in_dataloader


def test_two_passes_over_one_loader_do_not_disturb_each_other(runtime):
    loader = prepared(runtime(), range(4), batch_size=2)
    pairs = [(one.tolist(), two.tolist()) for one in loader for two in loader]
    assert pairs == [([0, 1], [0, 1]), ([0, 1], [2, 3]), ([2, 3], [0, 1]), ([2, 3], [2, 3])]


def test_an_empty_loader_yields_nothing_and_stays_in_its_epoch(runtime):
    alone = runtime()
    loader = prepared(alone, TensorDataset(torch.empty(0)), batch_size=2)
    assert list(loader) == []
    assert (loader.iteration, alone.gradient_state.in_dataloader) == (0, False)


def test_it_passes_for_the_loader_it_wraps(runtime):
    class Own(DataLoader):
        extra = "from the class"

        def twice(self):
            return 2 * self.note

    user = Own(range(10), batch_size=4)
    user.note = 21
    loader = prepare_data_loader(user, runtime=runtime())
    assert isinstance(loader, DataLoader)
    assert isinstance(loader, Own)
    assert type(loader) is DataLoaderShard
    assert (loader.note, loader.extra, loader.twice(), loader.batch_size, len(loader)) == (
        21,
        "from the class",
        42,
        4,
        3,
    )
    loader.note = 1
    assert user.note == 21
    with pytest.raises(AttributeError, match="no_such_thing"):
        _ = loader.no_such_thing


def test_a_loader_that_iterates_in_its_own_way_keeps_doing_so(on_ranks):
    class Doubling(DataLoader):
        def __iter__(self):
            for batch in super().__iter__():
                yield 2 * batch

    found = on_ranks(2, lambda runtime: lists(prepare_data_loader(Doubling(range(4), batch_size=2), runtime=runtime)))
    assert found == [[[0, 2]], [[4, 6]]]


def test_settings_of_the_loader_stay(on_ranks):
    def collate(samples):
        return torch.tensor(samples)

    def init(worker):
        pass

    generator = torch.Generator()
    settings = {
        "num_workers": 2,
        "collate_fn": collate,
        "timeout": 9,
        "worker_init_fn": init,
        "multiprocessing_context": "fork",
        "generator": generator,
        "prefetch_factor": 3,
        "persistent_workers": True,
        "in_order": False,
    }

    def work(runtime):
        user = DataLoader(range(8), batch_size=2, **settings)
        loader = prepare_data_loader(user, runtime=runtime)
        kept = {name: getattr(loader, name) for name in settings}
        return kept, kept["multiprocessing_context"].get_start_method(), loader.sampler is user.sampler

    for kept, context, same_sampler in on_ranks(2, work):
        kept.pop("multiprocessing_context")
        assert kept == {name: value for name, value in settings.items() if name != "multiprocessing_context"}
        assert (context, same_sampler) == ("fork", True)


@pytest.mark.parametrize("split", [False, True])
def test_sizes_of_a_step(on_ranks, split):
    def work(runtime):
        loader = prepared(runtime, range(10), batch_size=4, split_batches=split)
        return loader.total_batch_size, loader.batch_size, loader.total_dataset_length, len(loader), len(list(loader))

    assert on_ranks(2, work) == [(4, 2, 10, 3, 3) if split else (8, 4, 10, 2, 2)] * 2


def test_a_dataset_may_know_its_whole_length(runtime):
    dataset = TensorDataset(torch.arange(4))
    dataset.total_length = 40
    assert prepare_data_loader(DataLoader(dataset), runtime=runtime()).total_dataset_length == 40


def test_whole_items_are_shared_out(on_ranks):
    items = [torch.full((3,), i) for i in range(4)]
    found = on_ranks(2, lambda runtime: lists(prepare_data_loader(DataLoader(items, batch_size=None), runtime=runtime)))
    assert found == [[[0, 0, 0], [2, 2, 2]], [[1, 1, 1], [3, 3, 3]]]


def test_the_users_loader_stays_as_it_is(on_ranks):
    user = DataLoader(range(8), batch_size=2, shuffle=True)
    before, inside = dict(vars(user)), dict(vars(user.sampler))
    on_ranks(2, lambda runtime: lists(prepare_data_loader(user, runtime=runtime, use_seedable_sampler=True)))
    on_ranks(2, lambda runtime: lists(prepare_data_loader(user, runtime=runtime)))
    assert (dict(vars(user)), dict(vars(user.sampler))) == (before, inside)


def test_set_epoch_reaches_samplers_and_dataset(runtime):
    class Listens(torch.utils.data.SequentialSampler):
        def set_epoch(self, epoch):
            self.epoch = epoch

    dataset = TensorDataset(torch.arange(4))
    dataset.set_epoch = lambda epoch: setattr(dataset, "epoch", epoch)
    sampler = Listens(dataset)
    loader = prepare_data_loader(DataLoader(dataset, sampler=sampler), runtime=runtime())
    loader.set_epoch(5)
    assert (loader.iteration, sampler.epoch, dataset.epoch) == (5, 5, 5)
    list(loader)
    assert (loader.iteration, sampler.epoch) == (6, 5)
    list(loader)
    assert (loader.iteration, sampler.epoch, dataset.epoch) == (7, 6, 6)


@pytest.mark.parametrize("batch_size", [1, None])
def test_the_sampler_can_be_read_and_replaced(on_ranks, batch_size):
    user = DataLoader(torch.arange(4).reshape(4, 1), batch_size=batch_size, shuffle=True)

    def work(runtime):
        loader = prepare_data_loader(user, runtime=runtime)
        assert isinstance(loader.get_sampler() or loader.sampler.sampler, torch.utils.data.RandomSampler)
        loader.set_sampler([3, 2, 1, 0])
        later = skip_first_batches(loader, 1)
        later.set_sampler([0, 1, 2, 3])
        flat = [[batch.item() for batch in each] for each in (loader, later)]
        return *flat, loader.synchronized_generator

    assert on_ranks(2, work) == [([3, 1], [2], None), ([2, 0], [3], None)]
    assert isinstance(user.sampler, torch.utils.data.RandomSampler)


def test_a_random_sampler_that_is_set_later_is_agreed_on_too(on_ranks):
    def work(runtime):
        loader = prepared(runtime, range(12), batch_size=2)
        loader.set_sampler(torch.utils.data.RandomSampler(range(12)))
        return [index for batch in loader for index in batch.tolist()]

    one, two = on_ranks(2, work)
    assert sorted(one + two) == list(range(12))


def test_batches_go_to_the_device(runtime):
    class Movable:
        moved = None

        def to(self, device, non_blocking=False):
            self.moved = str(device)
            return self

    loader = DataLoader(range(2), collate_fn=lambda samples: {"ids": torch.tensor(samples), "odd": Movable()})
    for placed in (True, False):
        batches = list(prepare_data_loader(loader, runtime=runtime(), device="cpu", put_on_device=placed))
        assert [batch["odd"].moved for batch in batches] == (["cpu", "cpu"] if placed else [None, None])


def test_it_can_be_built_directly_and_uses_the_state_of_the_process():
    generator = torch.Generator().manual_seed(0)
    loader = DataLoaderShard(
        range(6), rng_types=["generator"], synchronized_generator=generator, skip_batches=1, batch_size=2, iteration=3
    )
    assert lists(loader) == [[2, 3], [4, 5]]
    assert (len(loader), loader.iteration, loader.synchronized_generator) == (2, 4, generator)
    assert loader.gradient_state.__dict__ is GradientState().__dict__


@pytest.mark.parametrize("carry", [lambda loader: pickle.loads(pickle.dumps(loader)), copy.deepcopy])
def test_it_can_be_pickled_and_copied(carry):
    loader = prepare_data_loader(
        DataLoader(range(6), batch_size=2, shuffle=True), data_seed=4, use_seedable_sampler=True
    )
    list(loader)
    twin = carry(loader)
    assert type(twin) is DataLoaderShard
    assert (twin.iteration, lists(twin)) == (1, lists(loader))


def test_it_can_be_pickled_in_the_middle_of_a_pass():
    loader = prepare_data_loader(DataLoader(range(6), batch_size=2, num_workers=1, persistent_workers=True))
    batches = iter(loader)
    next(batches)
    assert lists(pickle.loads(pickle.dumps(loader))) == [[0, 1], [2, 3], [4, 5]]
    assert [batch.tolist() for batch in batches] == [[2, 3], [4, 5]]


def test_workers_can_stay_alive_between_epochs(runtime):
    user = DataLoader(range(6), batch_size=2, num_workers=1, persistent_workers=True)
    loader = prepare_data_loader(user, runtime=runtime())
    assert lists(loader) == lists(loader) == [[0, 1], [2, 3], [4, 5]]


def test_a_plain_dataloader_draws_the_same_numbers(runtime):
    def draws(loader):
        torch.manual_seed(1)
        return [lists(loader) for _ in range(2)], torch.rand(2).tolist()

    def user():
        return DataLoader(range(10), batch_size=3, shuffle=True)

    assert draws(prepare_data_loader(user(), runtime=runtime())) == draws(user())


def test_skipped_loaders_are_of_the_same_kind(on_ranks):
    def work(runtime):
        loader = prepared(runtime, range(20), batch_size=2, put_on_device=True, non_blocking=False)
        loader._is_accelerate_prepared = True
        later = skip_first_batches(loader, 2)
        facts = type(later), len(later), later.total_batch_size, hasattr(later, "_is_accelerate_prepared")
        return facts, lists(later), (loader.iteration, later.iteration), runtime.gradient_state.in_dataloader

    expected = (DataLoaderShard, 3, 4, False)
    assert on_ranks(2, work) == [
        (expected, [[8, 9], [12, 13], [16, 17]], (1, 1), False),
        (expected, [[10, 11], [14, 15], [18, 19]], (1, 1), False),
    ]
