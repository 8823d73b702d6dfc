"""Data loaders: every process reads its share, all agree on the order, and each batch knows whether it is the last.

`prepare_data_loader` decides how a loader is shared out. `samplers` and `sampler_shards` deal indices (the arithmetic
is in `dealing`), `order` holds the seeds that ranks agree on, `prepared` the one pass that all loaders have in common,
`progress` how far a loader has come, `metrics` how results of all ranks are put together again.
"""

from __future__ import annotations

from accelerate.data_loader.adapter import DataLoaderAdapter
from accelerate.data_loader.dispatcher import DataLoaderDispatcher
from accelerate.data_loader.iterable import IterableDatasetShard
from accelerate.data_loader.iteration import DataLoaderStateMixin
from accelerate.data_loader.prepare import prepare_data_loader
from accelerate.data_loader.sampler_shards import BatchSamplerShard, SkipBatchSampler
from accelerate.data_loader.samplers import SeedableRandomSampler, get_sampler
from accelerate.data_loader.shard import DataLoaderShard
from accelerate.data_loader.shares import DataShard
from accelerate.data_loader.skip import SkipDataLoader, skip_first_batches

__all__ = [
    "BatchSamplerShard",
    "DataLoaderAdapter",
    "DataLoaderDispatcher",
    "DataLoaderShard",
    "DataLoaderStateMixin",
    "DataShard",
    "IterableDatasetShard",
    "SeedableRandomSampler",
    "SkipBatchSampler",
    "SkipDataLoader",
    "get_sampler",
    "prepare_data_loader",
    "skip_first_batches",
]
