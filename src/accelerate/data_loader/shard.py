"""The loader of one process: it reads its own share of the data, and moves it to the device."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset

from accelerate.comm.collectives import Collectives
from accelerate.config.enums import RNGType
from accelerate.data_loader.adapter import DataLoaderAdapter
from accelerate.data_loader.edge import current_runtime
from accelerate.data_loader.iterable import IterableDatasetShard
from accelerate.data_loader.iteration import Pass
from accelerate.data_loader.lockstep import Lockstep
from accelerate.data_loader.marked import MarkingCollate
from accelerate.data_loader.mover import mover_to
from accelerate.data_loader.order import Order, SharedOrder
from accelerate.data_loader.prepared import PreparedLoader
from accelerate.data_loader.progress import Progress
from accelerate.data_loader.sampler_shards import BatchSamplerShard, SamplerShard, SkipBatchSampler, skipping
from accelerate.data_loader.shares import DataShard
from accelerate.state.runtime import Runtime


class DataLoaderShard(PreparedLoader):
    """A `DataLoader` of one process among several, or of the only one.

    Args:
        dataset: the dataset.
        device: where batches are moved; None leaves them where they are.
        rng_types: which random generators are made equal on all ranks when a pass begins.
        synchronized_generator: what "generator" stands for in `rng_types`.
        skip_batches: how many batches every pass leaves out at its start.
        use_stateful_dataloader: read through torchdata's `StatefulDataLoader`.
        torch_device_mesh: the mesh of the run, kept for others to read.
        iteration: the number of the first epoch.
        base_dataloader: the loader to read from, which reads the share of this process only.
        runtime: the facts of the run; by default those of this process.
        order: how the ranks agree on the order of an epoch; by default through `synchronized_generator`, where
            `rng_types` names it.
        progress: where this loader is, when it shares that with another.
        shard: which share of the data it reads; by default one per rank.
        lockstep: keeps the ranks together that read a stream; None where what they read follows from indices.
        offset: how many batches `base_dataloader` leaves out already.
        **kwargs: what `torch.utils.data.DataLoader` takes.
    """

    def __init__(
        self,
        dataset: Any,
        device: torch.device | str | int | None = None,
        rng_types: list[str | RNGType] | None = None,
        synchronized_generator: torch.Generator | None = None,
        skip_batches: int = 0,
        use_stateful_dataloader: bool = False,
        _drop_last: bool = False,
        _non_blocking: bool = False,
        torch_device_mesh: Any = None,
        iteration: int = 0,
        *,
        base_dataloader: DataLoader | None = None,
        runtime: Runtime | None = None,
        order: Order | None = None,
        progress: Progress | None = None,
        shard: DataShard | None = None,
        lockstep: Lockstep | None = None,
        offset: int = 0,
        **kwargs: Any,
    ) -> None:
        DataLoaderAdapter.__init__(self, dataset, use_stateful_dataloader, base_dataloader=base_dataloader, **kwargs)
        self.device = device
        self.torch_device_mesh = torch_device_mesh
        self._drop_last = _drop_last
        self._non_blocking = _non_blocking
        self._lockstep = lockstep
        self._take_up(
            runtime or current_runtime(),
            progress,
            order=order or default_order(rng_types, synchronized_generator),
            shard=shard,
            iteration=iteration,
            rng_types=rng_types,
            skip_batches=skip_batches,
            offset=offset,
            mover=mover_to(device, _non_blocking),
        )

    @property
    def _together(self) -> Collectives | None:
        ranks = self._runtime.collectives
        return None if self._lockstep is None or ranks.world_size == 1 else ranks

    def _open(self, start: int, stream: list[dict[str, Any]] | None) -> Iterator[Any]:
        batches, together = self._read(start, stream), self._together
        if self._lockstep is not None and together is not None:
            snapshots = self.progress.snapshots
            batches = self._lockstep.run(together, batches, None if snapshots is None else snapshots.meet)
        return batches

    def without_first(self, num_batches: int) -> DataLoaderShard:
        """Return a loader that begins `num_batches` later and shares the epoch of this one."""
        if isinstance(self.dataset, IterableDataset):
            return self._twin(skip_batches=self.skip_batches + num_batches)
        return self._twin(
            base_dataloader=skipping(self.base_dataloader, num_batches), _offset=self._offset + num_batches
        )

    @property
    def collate_fn(self) -> Any:
        """The user's collate function."""
        collate = self.base_dataloader.collate_fn
        return collate.collate if isinstance(collate, MarkingCollate) else collate

    def _is_ragged(self) -> bool:
        share = share_of(self.base_dataloader)
        return share is not None and share.ragged

    def _see_end(self, this_pass: Pass, batch: Any) -> None:
        share = share_of(self._reading)
        if share is None:
            return
        if not isinstance(share, IterableDatasetShard):  # a stream marks its last batch itself
            this_pass.tail = share.tail()
        this_pass.remainder = min(this_pass.remainder, 0) if this_pass.tail is None else this_pass.tail.remainder

    @property
    def splits_batches(self) -> bool:
        """Whether each batch of the user's loader is cut into slices for the processes."""
        return bool(getattr(share_of(self.base_dataloader), "split_batches", False))

    @property
    def _batches_per_step(self) -> int:
        share = share_of(self.base_dataloader)
        if share is None or getattr(share, "split_batches", False):
            return 1
        return getattr(share, "sources", None) or share.num_processes

    @property
    def total_batch_size(self) -> int | None:
        """The samples of all processes together in one step; None when batches are of any size."""
        share = share_of(self.base_dataloader)
        if isinstance(share, IterableDatasetShard):
            return share.total_batch_size
        if isinstance(share, BatchSamplerShard) and share.batch_size is not None and not share.split_batches:
            return share.batch_size * share.num_processes
        return getattr(self._index_sampler, "batch_size", None)


def default_order(rng_types: list[str | RNGType] | None, generator: torch.Generator | None) -> Order:
    """Return the order of a loader whose owner says how it is agreed on."""
    names = [getattr(each, "value", each) for each in rng_types or ()]
    return SharedOrder(generator) if generator is not None and "generator" in names else Order()


def share_of(loader: DataLoader) -> BatchSamplerShard | SamplerShard | IterableDatasetShard | None:
    """Return what chooses this process's share of a loader; None when all samples are its own."""
    if isinstance(loader.dataset, IterableDatasetShard):
        return loader.dataset
    sampler: Any = loader.sampler if loader.batch_sampler is None else loader.batch_sampler
    while isinstance(sampler, SkipBatchSampler):
        sampler = sampler.batch_sampler
    return sampler if isinstance(sampler, (BatchSamplerShard, SamplerShard)) else None
