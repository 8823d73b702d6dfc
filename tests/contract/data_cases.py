"""The data that the contract of data loaders is checked on, and what the ranks do with it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.utils.data import BatchSampler, DataLoader, Dataset, IterableDataset, get_worker_info

from tests.unit.data_loader.streams import Sources


class Pair(NamedTuple):
    x: torch.Tensor
    names: list


class Count(IterableDataset):
    """Counts to `size`; where there are workers, each reads its own part."""

    def __init__(self, size):
        self.size = size

    def __iter__(self):
        worker = get_worker_info()
        return iter(range(self.size) if worker is None else range(worker.id, self.size, worker.num_workers))


class Augmented(Dataset):
    """Samples with what is drawn for them from each generator."""

    def __init__(self, size):
        self.size = size

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        return index, torch.rand(()).item(), np.random.rand()


class Rich(Dataset):
    """Nested samples with leaves of several kinds."""

    def __init__(self, size):
        self.size = size

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        return {"ids": torch.full((3,), index), "name": f"sample {index}", "flags": [index % 2 == 0, float(index)]}


class Batches(BatchSampler):
    """A batch sampler of other people."""


def ragged(samples):
    """Make a batch as wide as its greatest sample."""
    return Pair(torch.nn.utils.rnn.pad_sequence([torch.full((s + 1,), s) for s in samples], True, -1), list(samples))


def library_stream(sizes, shuffled=False):
    """Return a stream of the `datasets` library, one shard for each size."""
    import datasets

    def samples(shards):
        for number, size in shards:
            for index in range(size):
                yield {"x": 100 * number + index}

    stream = datasets.IterableDataset.from_generator(samples, gen_kwargs={"shards": list(enumerate(sizes))})
    stream = stream.with_format("torch")
    return stream.shuffle(seed=1, buffer_size=4) if shuffled else stream


@dataclass(frozen=True)
class Case:
    """A loader of a user, how it is prepared, and what all ranks together should see of it.

    Args:
        data: makes the dataset.
        samples: what is in it.
        loading: arguments of the `DataLoader`.
        batch_sampler: makes the batch sampler, if there is one.
        config: arguments of `DataLoaderConfiguration`.
    """

    data: Callable[[], Any]
    samples: Iterable[int]
    loading: dict[str, Any] = field(default_factory=dict)
    batch_sampler: Callable[[], Any] | None = None
    config: dict[str, Any] = field(default_factory=dict)

    def user(self, **changes: Any) -> DataLoader:
        """Return the loader as the user builds it."""
        made = {} if self.batch_sampler is None else {"batch_sampler": self.batch_sampler()}
        return DataLoader(self.data(), **{**self.loading, **made, **changes})


def counted(size, **loading):
    config = {
        key: loading.pop(key) for key in ("split_batches", "dispatch_batches", "use_seedable_sampler") if key in loading
    }
    return Case(lambda: range(size), range(size), loading, None, config)


def streamed(size, dispatch=False, **loading):
    return Case(lambda: Count(size), range(size), loading, None, {"dispatch_batches": dispatch})


def divided(sizes, **loading):
    sources = [range(100 * number, 100 * number + size) for number, size in enumerate(sizes)]
    samples = [index for source in sources for index in source]
    return Case(lambda: Sources(*sources), samples, loading, None, {"dispatch_batches": False})


def batched(size, sampler, **config):
    return Case(lambda: range(size), range(size), {}, sampler, config)


def accelerator_with(**options):
    from accelerate import Accelerator, DataLoaderConfiguration

    return Accelerator(cpu=True, dataloader_config=DataLoaderConfiguration(**options))


def prepared(case, **changes):
    """Return an Accelerator and the prepared loader of a case."""
    accelerator = accelerator_with(**case.config)
    return accelerator, accelerator.prepare(case.user(**changes))


def values(batch):
    """Return the samples of a batch or of what was gathered."""
    batch = batch["x"] if isinstance(batch, dict) else batch
    return batch.tolist() if isinstance(batch, torch.Tensor) else list(batch)
