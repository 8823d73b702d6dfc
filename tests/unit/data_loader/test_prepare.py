"""The decision how a loader is shared out, and what is refused or said aloud on the way."""

from __future__ import annotations

import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, SequentialSampler

from accelerate.config.enums import RNGType
from accelerate.data_loader import BatchSamplerShard, SeedableRandomSampler, get_sampler, prepare_data_loader


class OwnRandom(RandomSampler):
    """Shuffles in its own way."""


class Rebalanced:
    """A batch sampler that knows about ranks itself."""

    def __init__(self):
        self.sampler = RandomSampler(range(4), generator=torch.Generator().manual_seed(0))

    def __iter__(self):
        return iter([[0, 1], [2, 3]])

    def __len__(self):
        return 2


def four_parts(refusal):
    return all(part in str(refusal.value) for part in ("Given:", "Why not:", "Allowed:", "What to do:"))


def test_one_process_reads_everything(runtime):
    user = DataLoader(range(5), batch_size=2)
    loader = prepare_data_loader(user, runtime=runtime(), rng_types=["generator"], put_on_device=True)
    assert loader.batch_sampler is user.batch_sampler
    assert (loader.rng_types, loader.synchronized_generator) == ([], None)
    assert loader.device == torch.device("cpu")


@pytest.mark.parametrize("generator", ["generator", RNGType.GENERATOR])
def test_the_generator_is_named_only_where_it_is_agreed_on(runtime, generator):
    user = DataLoader(range(4), shuffle=True)
    share = {"num_processes": 2, "process_index": 0, "rng_types": [generator, "torch"]}
    loader = prepare_data_loader(user, runtime=runtime(), **share)
    assert loader.rng_types == [generator, "torch"]
    assert loader.synchronized_generator is loader.get_sampler().generator
    seedable = prepare_data_loader(user, runtime=runtime(), use_seedable_sampler=True, **share)
    assert (seedable.rng_types, seedable.synchronized_generator) == (["torch"], None)


def test_a_prepared_loader_stays_as_it_is(runtime):
    loader = prepare_data_loader(DataLoader(range(5)), runtime=runtime())
    assert prepare_data_loader(loader, runtime=runtime(), num_processes=2, process_index=1) is loader


def test_the_batch_sampler_of_the_user_is_wrapped_and_can_be_reached(runtime):
    sampler = Rebalanced()
    user = DataLoader(range(4), batch_sampler=sampler)
    loader = prepare_data_loader(user, runtime=runtime(), num_processes=2, process_index=1)
    assert isinstance(loader.batch_sampler, BatchSamplerShard)
    assert loader.batch_sampler.batch_sampler is sampler
    assert loader.synchronized_generator is sampler.sampler.generator
    loader.batch_sampler.num_processes, loader.batch_sampler.process_index = 1, 0
    assert [batch.tolist() for batch in loader] == [[0, 1], [2, 3]]
    assert loader.remainder <= 0


def test_a_batch_sampler_given_as_sampler_fetches_whole_batches(runtime):
    def user():
        return DataLoader(
            torch.arange(10), sampler=BatchSampler(SequentialSampler(range(10)), 3, False), batch_size=None
        )

    loaders = [prepare_data_loader(user(), runtime=runtime(), num_processes=2, process_index=rank) for rank in range(2)]
    assert [[batch.tolist() for batch in loader] for loader in loaders] == [
        [[0, 1, 2], [6, 7, 8]],
        [[3, 4, 5], [9, 0, 1]],
    ]
    assert [(len(loader), loader.total_batch_size, loader.remainder) for loader in loaders] == [(2, 6, 4)] * 2
    assert isinstance(get_sampler(loaders[0]), SequentialSampler)


def test_shares_follow_the_mesh(on_ranks):
    class Mesh:
        mesh_dim_names = ("dp_replicate", "tp")

        def __getitem__(self, name):
            return self

        def size(self):
            return 2

    def work(runtime):
        loader = prepare_data_loader(DataLoader(range(4)), runtime=runtime, torch_device_mesh=Mesh())
        return [batch.item() for batch in loader]

    assert on_ranks(4, work) == [[0, 2], [0, 2], [1, 3], [1, 3]]


def test_a_share_that_does_not_exist_is_refused(runtime):
    with pytest.raises(ValueError, match="process_index from 0 to 1") as refusal:
        prepare_data_loader(DataLoader(range(4)), runtime=runtime(), num_processes=2, process_index=2)
    assert four_parts(refusal)


@pytest.mark.parametrize("batch_size", [3, None])
def test_batches_that_cant_be_split_are_refused(runtime, batch_size):
    with pytest.raises(ValueError, match="split_batches=True") as refusal:
        prepare_data_loader(
            DataLoader(range(4), batch_size=batch_size),
            runtime=runtime(),
            num_processes=2,
            process_index=0,
            split_batches=True,
        )
    assert four_parts(refusal)


def test_one_process_has_nothing_to_split(runtime):
    loader = prepare_data_loader(DataLoader(range(4), batch_size=3), runtime=runtime(), split_batches=True)
    assert [len(batch) for batch in loader] == [3, 1]


def test_dispatching_needs_a_device(runtime):
    with pytest.raises(ValueError, match="dispatch_batches=True with device placement off") as refusal:
        prepare_data_loader(DataLoader(range(4)), runtime=runtime(), dispatch_batches=True)
    assert four_parts(refusal)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"slice_fn_for_dispatch": max}, "slice_fn_for_dispatch"),
        ({"non_blocking": True}, "non_blocking"),
        ({"data_seed": 3}, "data_seed"),
    ],
)
def test_options_without_effect_are_named(runtime, options, says):
    with pytest.warns(UserWarning, match=f"`{says}.* no effect"):
        prepare_data_loader(DataLoader(range(4)), runtime=runtime(), **options)


def test_a_shuffling_sampler_of_other_people_is_not_replaced(runtime):
    sampler = OwnRandom(range(4))
    with pytest.warns(UserWarning, match="OwnRandom"):
        loader = prepare_data_loader(
            DataLoader(range(4), sampler=sampler), runtime=runtime(), use_seedable_sampler=True
        )
    assert loader.get_sampler() is sampler


def test_torchs_random_sampler_is_replaced_by_a_seedable_one(runtime):
    options = {"runtime": runtime(), "use_seedable_sampler": True, "data_seed": 8}
    loader = prepare_data_loader(DataLoader(range(4), batch_size=2, shuffle=True), **options)
    assert isinstance(loader.get_sampler(), SeedableRandomSampler)
    assert loader.sampler is loader.get_sampler()
    assert loader.get_sampler().initial_seed == 8
    own = SeedableRandomSampler(range(4), data_seed=1)
    assert prepare_data_loader(DataLoader(range(4), sampler=own), **options).get_sampler() is own
    whole = prepare_data_loader(DataLoader(torch.eye(4), batch_size=None, shuffle=True), **options)
    assert isinstance(whole.sampler, SeedableRandomSampler)


def test_rng_types_other_than_the_generator_are_made_equal_when_a_pass_begins(on_ranks):
    def work(runtime):
        loader = prepare_data_loader(DataLoader(range(4)), runtime=runtime, rng_types=["torch"])
        return len(list(loader))

    assert on_ranks(2, work) == [2, 2]
    with pytest.raises(ValueError, match="no such generator"):
        on_ranks(
            2, lambda runtime: list(prepare_data_loader(DataLoader(range(4)), runtime=runtime, rng_types=["torhc"]))
        )


def test_the_state_of_the_process_is_used_where_no_runtime_is_given():
    loader = prepare_data_loader(DataLoader(range(4), batch_size=2))
    assert [batch.tolist() for batch in loader] == [[0, 1], [2, 3]]
