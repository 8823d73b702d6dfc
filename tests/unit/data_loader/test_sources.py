"""A stream of several sources, of which every rank reads its own."""

from __future__ import annotations

import pickle
import warnings
from collections import Counter
from itertools import chain

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from accelerate.data_loader import DataLoaderDispatcher, prepare_data_loader, skip_first_batches
from accelerate.data_loader.iterable import IterableDatasetShard, SourceShard
from accelerate.data_loader.metrics import gather_for_metrics
from accelerate.data_loader.stateful import Snapshots
from tests.unit.data_loader.streams import Remembering, Sources, Stateless

UNEVEN = "ignore:Ranks .* ran out of data"


def sources(*sizes):
    return [range(100 * number, 100 * number + size) for number, size in enumerate(sizes)]


def lists(loader):
    return [batch.tolist() for batch in loader]


def prepared(runtime, dataset, kind=DataLoader, **options):
    settings = {name: options.pop(name) for name in ("num_workers", "drop_last") if name in options}
    return prepare_data_loader(kind(dataset, batch_size=2, **settings), runtime=runtime, **options)


def test_each_rank_reads_its_own_sources(on_ranks):
    def work(runtime):
        dataset = Sources(*sources(4, 4, 4, 4))
        loader = prepared(runtime, dataset)
        return lists(loader), loader.dataset.read, dataset.read, loader.total_batch_size

    assert on_ranks(2, work) == [
        ([[0, 1], [2, 3], [100, 101], [102, 103]], [0, 1, 2, 3, 100, 101, 102, 103], [], 4),
        ([[200, 201], [202, 203], [300, 301], [302, 303]], [200, 201, 202, 203, 300, 301, 302, 303], [], 4),
    ]


def test_short_and_missing_batches_are_filled_up_with_the_first_samples(on_ranks):
    def work(runtime):
        loader = prepared(runtime, Sources(*sources(4, 1)))
        ends = [(batch.tolist(), loader.end_of_dataloader, runtime.gradient_state.remainder) for batch in loader]
        return ends, loader.iteration

    with pytest.warns(UserWarning, match=r"Ranks \[1\] ran out of data after 1 steps.* its own shards"):
        assert on_ranks(2, work) == [
            ([([0, 1], False, -1), ([2, 3], True, 2)], 1),
            ([([100, 100], False, -1), ([100, 100], True, 2)], 1),
        ]


@pytest.mark.filterwarnings(UNEVEN)
@settings(max_examples=60)
@given(
    st.integers(2, 4).flatmap(
        lambda ranks: st.tuples(st.just(ranks), st.lists(st.integers(0, 9), min_size=ranks, max_size=9))
    ),
    st.sampled_from([1, 2, 3, None]),
    st.booleans(),
)
def test_metrics_see_each_sample_once(on_ranks, world, batch_size, drop_last):
    ranks, sizes = world

    def work(runtime):
        user = DataLoader(
            Sources(*sources(*sizes)), batch_size=batch_size, drop_last=drop_last and batch_size is not None
        )
        loader = prepare_data_loader(user, runtime=runtime)
        steps, gathered = 0, []
        for batch in loader:
            steps += 1
            found = gather_for_metrics(runtime.collectives, runtime.gradient_state, batch)
            gathered += found.tolist() if batch_size else [found] if isinstance(found, int) else list(found)
        assert not runtime.gradient_state.in_dataloader
        return steps, gathered

    found = on_ranks(ranks, work)
    assert len({steps for steps, _ in found}) == 1
    for _, gathered in found:
        seen, expected = Counter(map(int, gathered)), Counter(chain(*sources(*sizes)))
        assert seen <= expected if drop_last and batch_size else seen == expected


@pytest.mark.parametrize(("options", "number"), [({}, 1), ({"split_batches": True}, 4)])
def test_without_enough_sources_every_rank_reads_all(on_ranks, options, number):
    def work(runtime):
        loader = prepared(runtime, Sources(*sources(*[4] * number)), **options)
        return type(loader.dataset), len(list(loader)) * loader.batch_size

    assert on_ranks(2, work) == [(IterableDatasetShard, 2 * number)] * 2


def test_by_default_rank_0_reads_where_batches_go_to_the_device(on_ranks):
    def work(runtime):
        return type(prepared(runtime, Sources(*sources(4, 4)), put_on_device=True))

    assert on_ranks(2, work) == [DataLoaderDispatcher] * 2


def test_the_stream_inside_can_be_reached(on_ranks):
    def work(runtime):
        loader = prepared(runtime, Sources(*sources(4, 4)))
        loader.set_epoch(3)
        dataset = pickle.loads(pickle.dumps(loader.dataset))
        return type(dataset), loader.dataset.features, loader.dataset.dataset.epoch, dataset.features

    assert on_ranks(2, work) == [(SourceShard, "features", 3, "features")] * 2


def test_how_long_it_is_is_not_known(on_ranks):
    def work(runtime):
        with pytest.raises(TypeError, match="every process reads its own shards"):
            len(prepared(runtime, Sources(*sources(4, 4))))

    on_ranks(2, work)


def resumed(on_ranks, make, place):
    """Return, for each rank, what an interrupted pass would have gone on with, and what a resumed one begins with."""

    def work(runtime):
        one, other = make(runtime), make(runtime)
        batches = iter(one)
        for _ in range(place):
            next(batches)
        state = runtime.collectives.broadcast_object(one.state_dict())  # rank 0 saves for all
        other.load_state_dict(pickle.loads(pickle.dumps(state)))
        expected = [*map(real(one, runtime), batches)]
        found = [*map(real(other, runtime), other)]
        read = len(other._whole_dataset.read)
        again = [*map(real(other, runtime), other)], [*map(real(one, runtime), one)]
        return expected, found, read, again[0] == again[1], one.iteration == other.iteration

    return on_ranks(2, work)


def real(loader, runtime):
    """Return a function that takes what is repeated off a batch."""

    def take(batch):
        tail = runtime.gradient_state.active.tail
        count = None if tail is None else tail.counts[runtime.topology.rank]
        return batch.tolist()[:count]

    return take


@pytest.mark.filterwarnings(UNEVEN)
@pytest.mark.filterwarnings("ignore:Resuming inside an epoch of a stream that has no state")
@pytest.mark.parametrize("place", [1, 2, 4, 5, 7, 8])
@pytest.mark.parametrize("kind", [DataLoader, Remembering])
@pytest.mark.parametrize("data", [Sources, Stateless])
@pytest.mark.parametrize("sizes", [(5, 2, 4, 11), (7, 8, 0, 0)])
def test_a_pass_goes_on_where_it_was_saved(on_ranks, place, kind, data, sizes):
    for expected, found, _, *same in resumed(
        on_ranks, lambda runtime: prepared(runtime, data(*sources(*sizes)), kind), place
    ):
        assert found == expected
        assert all(same)


@pytest.mark.parametrize("place", [1, 40, 70, 100])
def test_sources_with_a_state_are_not_read_again(on_ranks, place):
    def make(runtime):
        return prepared(runtime, Sources(*sources(*[100] * 6)), Remembering)

    for expected, found, read, *_ in resumed(on_ranks, make, place):
        assert found == expected
        assert read <= 300 - 2 * place + 2 * 2 * Snapshots.EVERY


def test_the_stream_that_is_read_whole_is_restored_too(on_ranks):
    def make(runtime):
        return prepared(runtime, Sources(range(403)), Remembering)

    for expected, found, read, *_ in resumed(on_ranks, make, 70):
        assert found == expected
        assert read <= 403 - 4 * 70 + 4 * 2 * Snapshots.EVERY + 4  # and the first round, to complete the last one


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")
@pytest.mark.filterwarnings(UNEVEN)
@pytest.mark.parametrize("place", [20, 37, 75])
# Without workers: the ranks are threads here, and forking a process out of a thread can deadlock.
@pytest.mark.parametrize("workers", [0])
@pytest.mark.parametrize("dispatch", [False, True])
@pytest.mark.parametrize("data", [Sources(*sources(90, 41, 71, 100)), Sources(range(403))])
def test_torchdata_resumes_streams_of_several_ranks(on_ranks, place, workers, dispatch, data):
    pytest.importorskip("torchdata.stateful_dataloader", reason="torchdata is an extra")

    def make(runtime):
        return prepared(
            runtime,
            pickle.loads(pickle.dumps(data)),
            num_workers=workers,
            use_stateful_dataloader=True,
            dispatch_batches=dispatch,
            put_on_device=True,
        )

    for expected, found, _, *same in resumed(on_ranks, make, place):
        assert found == expected
        assert all(same)


def test_a_place_in_sources_is_refused_by_other_ranks(on_ranks):
    def save(runtime):
        loader = prepared(runtime, Sources(*sources(*[8] * 4)))
        next(iter(loader))
        return loader.state_dict()

    state = on_ranks(4, save)[0]

    def load(runtime):
        loader = prepared(runtime, Sources(*sources(*[8] * 4)))
        loader.load_state_dict({**state, "batches": 0})  # between epochs
        with pytest.raises(ValueError, match="read by 4 processes and is read by 2 processes now"):
            loader.load_state_dict(state)

    on_ranks(2, load)


def test_later_batches_of_sources(on_ranks):
    def work(runtime):
        loader = prepared(runtime, Sources(*sources(6, 6)))
        return lists(skip_first_batches(loader, 2))

    assert on_ranks(2, work) == [[[4, 5]], [[104, 105]]]


def test_a_share_in_the_middle_of_a_round_is_read_again():
    shard = IterableDatasetShard(Sources(range(12)), batch_size=2, num_processes=2, process_index=1)
    samples = iter(shard)
    assert [next(samples) for _ in range(3)] == [2, 3, 6]
    state = shard.state_dict()
    assert state["given"] == 3
    assert state["stream"] is None
    shard.load_state_dict(state)
    assert shard.state_dict() is state
    assert list(shard) == [7, 10, 11]


def test_uneven_batches_of_streams_are_not_to_be_had(on_ranks):
    with pytest.warns(UserWarning, match="`even_batches=False` has no effect on iterable datasets"):
        on_ranks(2, lambda runtime: prepared(runtime, Sources(*sources(2, 2)), even_batches=False))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        on_ranks(1, lambda runtime: prepared(runtime, Sources(*sources(2, 2)), even_batches=False))
