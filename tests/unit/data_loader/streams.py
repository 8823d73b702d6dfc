"""Streams and batch samplers that stand in for those of other people."""

from __future__ import annotations

import copy

from torch.utils.data import DataLoader, IterableDataset, get_worker_info


class Sources(IterableDataset):
    """A stream of several sources, with the surface of a `datasets.IterableDataset`.

    The sources are divided among processes by `shard`, and among worker processes by the stream itself.
    """

    def __init__(self, *sources):
        self.sources = [list(source) for source in sources]
        self.features = "features"
        self.epoch = 0
        self.read = []
        self._place = (0, 0)
        self._starting = None

    @property
    def num_shards(self):
        return len(self.sources)

    def shard(self, num_shards, index):
        part, more = divmod(len(self.sources), num_shards)
        start = index * part + min(index, more)
        new = copy.copy(self)
        new.sources, new.read = self.sources[start : start + part + (index < more)], []
        return new

    def set_epoch(self, epoch):
        self.epoch = epoch

    def state_dict(self):
        return {"place": self._place, "epoch": self.epoch}

    def load_state_dict(self, state):
        self._starting = state

    def __iter__(self):
        worker = get_worker_info()
        sources = self.sources if worker is None else self.sources[worker.id :: worker.num_workers]
        begins = self._starting is not None and self._starting["epoch"] == self.epoch
        self._place = self._starting["place"] if begins else (0, 0)
        skip_sources, skip = self._place
        for number, source in enumerate(sources[skip_sources:], skip_sources):
            for index, sample in enumerate(source[skip:], skip):
                self._place = (number, index + 1)
                self.read.append(sample)
                yield sample
            skip = 0


class Stateless(Sources):
    """The same without a state."""

    state_dict = property()
    load_state_dict = property()


class Remembering(DataLoader):
    """What a `StatefulDataLoader` without workers is, as far as streams are concerned."""

    def state_dict(self):
        return self.dataset.state_dict()

    def load_state_dict(self, state):
        self.dataset.load_state_dict(state)


class OfAnySize:
    """A batch sampler that doesn't say how large its batches are: of one, two and three samples in turn."""

    def __init__(self, size):
        self.batches = []
        while (done := sum(map(len, self.batches))) < size:
            self.batches.append(list(range(done, min(done + 1 + len(self.batches) % 3, size))))

    def __iter__(self):
        return iter(self.batches)

    def __len__(self):
        return len(self.batches)
