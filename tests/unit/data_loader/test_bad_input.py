"""Input that can't be right: said once, in words, on every rank that it concerns, and nobody waits for ever."""

from __future__ import annotations

import traceback
import warnings

import pytest
from torch.utils.data import BatchSampler, DataLoader, Dataset, IterableDataset, Sampler

from accelerate.data_loader import prepare_data_loader, skip_first_batches
from accelerate.data_loader.metrics import gather_for_metrics


class Endless(Dataset):
    """A map-style dataset that knows no length."""

    def __getitem__(self, index):
        return index


class Says(Sampler):
    """A sampler with a length of its own."""

    def __init__(self, yields, says):
        self.yields = yields
        self.says = says

    def __len__(self):
        return self.says

    def __iter__(self):
        return iter(range(self.yields))


class Count(IterableDataset):
    def __init__(self, size):
        self.size = size

    def __iter__(self):
        return iter(range(self.size))


def errors_of(on_ranks, ranks, function):
    """Return what every rank raises."""

    def work(runtime):
        try:
            function(runtime)
        except Exception as error:
            return error
        return None

    return on_ranks(ranks, work)


@pytest.mark.parametrize(
    "options", [{}, {"use_seedable_sampler": True}, {"use_seedable_sampler": True, "data_seed": 3}]
)
def test_datasets_of_different_lengths_are_named_by_rank(on_ranks, options):
    def prepare(runtime):
        user = DataLoader(range(10 if runtime.topology.rank == 1 else 12), batch_size=2, shuffle=True)
        prepare_data_loader(user, runtime=runtime, **options)

    for error in errors_of(on_ranks, 3, prepare):
        assert isinstance(error, ValueError)
        assert "datasets of different lengths: 12 on ranks 0, 2; 10 on rank 1" in str(error)


@pytest.mark.parametrize("batched", [True, False])
def test_samplers_of_different_lengths_are_named_by_rank(on_ranks, batched):
    def prepare(runtime):
        sampler = Says(8, 8) if runtime.topology.rank else Says(6, 6)
        user = DataLoader(Endless(), batch_size=2 if batched else None, sampler=sampler)
        prepare_data_loader(user, runtime=runtime)

    name, first, second = ("batch samplers", 3, 4) if batched else ("samplers", 6, 8)
    for error in errors_of(on_ranks, 2, prepare):
        assert f"{name} of different lengths: {first} on rank 0; {second} on rank 1" in str(error)


def test_a_rank_whose_data_has_no_length_is_named(on_ranks):
    def prepare(runtime):
        user = DataLoader(Endless() if runtime.topology.rank else range(4), sampler=Says(4, 4))
        prepare_data_loader(user, runtime=runtime)

    for error in errors_of(on_ranks, 2, prepare):
        assert "4 on rank 0; an unknown length on rank 1" in str(error)


def test_lengths_may_differ_where_nothing_is_shared_out(on_ranks):
    def work(runtime):
        user = DataLoader(range(2 + runtime.topology.rank), batch_size=2)
        own = prepare_data_loader(user, num_processes=1, process_index=0, runtime=runtime)
        dispatched = prepare_data_loader(user, dispatch_batches=True, put_on_device=True, runtime=runtime)
        return len(list(own)), len(list(dispatched))

    assert on_ranks(2, work) == [(1, 1), (2, 1)]


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("dispatch", [False, True])
@pytest.mark.parametrize(("yields", "says"), [(8, 12), (12, 8), (11, 3), (0, 4)])
def test_a_sampler_that_miscounts_is_followed_and_named_once(on_ranks, ranks, dispatch, yields, says):
    def work(runtime):
        user = DataLoader(range(20), batch_size=2, sampler=Says(yields, says))
        loader = prepare_data_loader(user, dispatch_batches=dispatch, put_on_device=True, runtime=runtime)
        return [
            [
                index
                for batch in loader
                for index in gather_for_metrics(runtime.collectives, runtime.gradient_state, batch).tolist()
            ]
            for _ in range(2)
        ]

    steps, announced = -(-yields // (2 * ranks)), -(-says // (2 * ranks))
    with pytest.warns(UserWarning, match=f"Says announced {announced} .* and gave {steps}") as said:
        assert on_ranks(ranks, work) == [[list(range(yields))] * 2] * ranks
    assert len(said) == 1


def test_a_batch_sampler_that_miscounts_is_named(runtime):
    class Batches(BatchSampler):
        def __iter__(self):
            return iter([[0, 1], [2]])

    loader = prepare_data_loader(DataLoader(range(20), batch_sampler=Batches(range(20), 2, False)), runtime=runtime())
    with pytest.warns(UserWarning, match="gave 2"):
        assert len(list(loader)) == 2
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(list(skip_first_batches(loader, 30))) == 0  # nothing was given, so nothing can be said


@pytest.mark.parametrize("drop_last", [False, True])
def test_a_stream_that_ends_early_on_one_rank_ends_on_all(on_ranks, drop_last):
    def work(runtime):
        size = 9 if runtime.topology.rank else 20
        user = DataLoader(Count(size), batch_size=2, drop_last=drop_last)
        loader = prepare_data_loader(user, runtime=runtime)
        return [(len(batch), loader.end_of_dataloader) for batch in loader]

    steps = 2 if drop_last else 5
    with pytest.warns(UserWarning, match=r"Ranks \[1\] ran out .*has to be the same on all of them") as said:
        assert on_ranks(2, work) == [[(2, step == steps - 1) for step in range(steps)]] * 2
    assert len(said) == 1


def test_a_stream_that_fails_on_one_rank_stops_all(on_ranks):
    class Fails(Count):
        def __iter__(self):
            yield from range(4)
            raise OSError("connection lost")

    def read(runtime):
        stream = Fails(8) if runtime.topology.rank else Count(8)
        list(prepare_data_loader(DataLoader(stream, batch_size=2), runtime=runtime))

    other, own = errors_of(on_ranks, 2, read)
    assert isinstance(own, OSError)
    assert "ranks [1] failed" in str(other)


def test_a_batch_size_that_cant_be_split_is_refused_with_the_nearest_ones(on_ranks):
    def prepare(runtime):
        prepare_data_loader(DataLoader(range(40), batch_size=10), split_batches=True, runtime=runtime)

    for error in errors_of(on_ranks, 4, prepare):
        assert isinstance(error, ValueError)
        assert "use batch_size=8 or 12" in str(error)


def test_a_leaf_that_cant_be_sent_is_named_with_its_place(on_ranks):
    def collate(samples):
        return {"x": samples, "how": [0, (number for number in samples)]}

    def read(runtime):
        user = DataLoader(Count(8), batch_size=2, collate_fn=collate)
        list(prepare_data_loader(user, put_on_device=True, runtime=runtime))

    own, other = errors_of(on_ranks, 2, read)
    assert isinstance(own, TypeError)
    assert "a generator at batch['how'][1]" in str(own)
    assert isinstance(other, RuntimeError)
    assert "a generator at batch['how'][1]" in str(other)


def failing(samples):
    if 4 in samples:
        raise KeyError("no such label")
    return samples


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("dispatch", [False, True])
def test_the_traceback_of_a_worker_arrives_once(runtime, stream, dispatch):
    data = Count(8) if stream else range(8)
    user = DataLoader(data, batch_size=2, num_workers=1, collate_fn=failing)
    loader = prepare_data_loader(user, dispatch_batches=dispatch, put_on_device=True, runtime=runtime())
    with pytest.raises(KeyError) as caught:
        list(loader)
    text = "".join(traceback.format_exception(caught.value))
    assert text.count('raise KeyError("no such label")') == 1
    assert text.count("in failing") == 1
    assert "in DataLoader worker process 0" in text
