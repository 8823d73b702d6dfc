"""Streams of the `datasets` library: each rank reads its own shards, each sample once, and a pass can be resumed."""

from __future__ import annotations

import pickle
from collections import Counter

import pytest
from torch.utils.data import DataLoader

from accelerate.comm.fake import FakeWorld
from accelerate.data_loader import prepare_data_loader
from accelerate.data_loader.iterable import SourceShard
from accelerate.data_loader.metrics import gather_for_metrics
from tests.unit.data_loader.conftest import runtime_of

datasets = pytest.importorskip("datasets", reason="`datasets` is not among this project's requirements")

pytestmark = [
    pytest.mark.filterwarnings("ignore:Ranks .* ran out of data"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]

SIZES = [70, 31, 50, 123, 40]
EVERYTHING = Counter(100 * number + index for number, size in enumerate(SIZES) for index in range(size))


def samples(sources):
    for number in sources:
        for index in range(SIZES[number]):
            yield {"x": 100 * number + index}


def stream(shuffled=False):
    found = datasets.IterableDataset.from_generator(samples, gen_kwargs={"sources": list(range(len(SIZES)))})
    found = found.with_format("torch")
    return found.shuffle(seed=1, buffer_size=3) if shuffled else found


def on_ranks(ranks, function):
    return FakeWorld(ranks).run(lambda collectives: function(runtime_of(collectives)))


def real(loader, runtime):
    """Return a function that takes what is repeated off a batch."""

    def take(batch):
        tail = runtime.gradient_state.active.tail
        return batch["x"].tolist()[: None if tail is None else tail.counts[runtime.topology.rank]]

    return take


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("shuffled", [False, True])
@pytest.mark.parametrize("ranks", [2, 5])
def test_each_rank_reads_its_shards_and_each_sample_counts_once(workers, shuffled, ranks):
    def work(runtime):
        loader = prepare_data_loader(
            DataLoader(stream(shuffled), batch_size=2, num_workers=min(workers, 1 if ranks == 5 else 2)),
            runtime=runtime,
        )
        assert isinstance(loader.dataset, SourceShard)
        assert loader.dataset.features == loader.dataset.dataset.features
        epochs = []
        for _ in range(2):
            gathered = [
                gather_for_metrics(runtime.collectives, runtime.gradient_state, batch)["x"].tolist() for batch in loader
            ]
            epochs.append([index for batch in gathered for index in batch])
        return epochs

    for epochs in on_ranks(ranks, work):
        assert [Counter(each) for each in epochs] == [EVERYTHING, EVERYTHING]
        assert (epochs[0] != epochs[1]) == shuffled


@pytest.mark.parametrize("ranks", [2, 6])
def test_dispatched_and_read_whole(ranks):
    def work(runtime):
        found = []
        for options in ({"put_on_device": True}, {"split_batches": True}):
            user = DataLoader(stream(), batch_size=ranks)
            loader = prepare_data_loader(user, runtime=runtime, **options)
            gathered = [
                gather_for_metrics(runtime.collectives, runtime.gradient_state, batch)["x"].tolist() for batch in loader
            ]
            found.append(Counter(index for batch in gathered for index in batch))
        return found

    assert on_ranks(ranks, work) == [[EVERYTHING, EVERYTHING]] * ranks


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")
@pytest.mark.filterwarnings("ignore:Resuming inside an epoch of a stream that has no state")
@pytest.mark.parametrize("place", [5, 70])
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("shuffled", [False, True])
@pytest.mark.parametrize("dispatch", [False, True])
def test_a_pass_goes_on_where_it_was_saved(place, workers, shuffled, dispatch):
    pytest.importorskip("torchdata.stateful_dataloader", reason="torchdata is an extra")

    def work(runtime):
        def make():
            return prepare_data_loader(
                DataLoader(stream(shuffled), batch_size=2, num_workers=workers),
                runtime=runtime,
                put_on_device=True,
                dispatch_batches=dispatch,
                use_stateful_dataloader=True,
            )

        one, other = make(), make()
        list(one)
        batches = iter(one)
        for _ in range(place):
            next(batches)
        state = runtime.collectives.broadcast_object(one.state_dict())
        other.load_state_dict(pickle.loads(pickle.dumps(state)))
        expected = [*map(real(one, runtime), batches)]
        found = [*map(real(other, runtime), other)]
        return expected, found, [*map(real(one, runtime), one)], [*map(real(other, runtime), other)]

    for expected, found, *next_epoch in on_ranks(2, work):
        assert found == expected
        assert next_epoch[0] == next_epoch[1]


def test_a_map_style_dataset_is_shared_out_by_index():
    data = datasets.Dataset.from_dict({"x": list(range(11))}).with_format("torch")

    def work(runtime):
        loader = prepare_data_loader(DataLoader(data, batch_size=2, shuffle=True), runtime=runtime)
        gathered = [
            gather_for_metrics(runtime.collectives, runtime.gradient_state, batch)["x"].tolist() for batch in loader
        ]
        return sorted(index for batch in gathered for index in batch)

    assert on_ranks(3, work) == [list(range(11))] * 3
