"""`prepare_data_loader`: one decision about how a loader is shared out, then one object.

The user's loader is copied with another sampler, never taken apart: its class, workers, collate function and whatever
else its owner put into it stay.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils.data import BatchSampler, DataLoader, IterableDataset

from accelerate.base.messages import message, warn_once
from accelerate.config.enums import RNGType
from accelerate.data_loader.adapter import DataLoaderAdapter
from accelerate.data_loader.copies import copy_loader
from accelerate.data_loader.dispatcher import DataLoaderDispatcher
from accelerate.data_loader.edge import current_runtime
from accelerate.data_loader.order import Order
from accelerate.data_loader.sampler_shards import check_divisible
from accelerate.data_loader.shard import DataLoaderShard
from accelerate.data_loader.shares import DataShard
from accelerate.data_loader.sharing import Rules, drops_last, remaining_rng_types, shared, shared_samplers
from accelerate.state.runtime import Runtime


def prepare_data_loader(
    dataloader: DataLoader,
    device: torch.device | str | int | None = None,
    num_processes: int | None = None,
    process_index: int | None = None,
    split_batches: bool = False,
    put_on_device: bool = False,
    rng_types: list[str | RNGType] | None = None,
    dispatch_batches: bool | None = None,
    even_batches: bool = True,
    slice_fn_for_dispatch: Callable[..., Any] | None = None,
    use_seedable_sampler: bool = False,
    data_seed: int | None = None,
    non_blocking: bool = False,
    use_stateful_dataloader: bool = False,
    torch_device_mesh: Any = None,
    *,
    runtime: Runtime | None = None,
) -> Any:
    """Return a loader that gives each process its share of the data.

    Args:
        dataloader: the user's loader, which stays as it is. A prepared one is returned as it is.
        device: where batches go when `put_on_device`; by default the device of this process.
        num_processes: among how many processes the data is shared out; by default all.
        process_index: which of them this one is; by default its rank.
        split_batches: the loader's batch size is that of all processes together, and divisible by their number.
        put_on_device: move every batch to `device`.
        rng_types: random generators made equal on all ranks at the start of every pass; "generator" is implied.
        dispatch_batches: read on rank 0 only and send the others their parts; None: for iterable datasets whose
            batches are put on the device.
        even_batches: repeat the first samples at the end, so that every process gets as many.
        slice_fn_for_dispatch: cuts what rank 0 read into parts.
        use_seedable_sampler: shuffle with a :class:`SeedableRandomSampler`, where the loader shuffles.
        data_seed: its seed; by default torch's initial seed on rank 0.
        non_blocking: don't wait for copies to the device.
        use_stateful_dataloader: read with torchdata's `StatefulDataLoader`.
        torch_device_mesh: the mesh of the run; ranks that differ in data-parallel axes read different data.
        runtime: the facts of the run; by default those of this process.

    Raises:
        ValueError: `split_batches` with a batch size that can't be split, `dispatch_batches` without `put_on_device`,
            a share that doesn't exist, or data of different lengths on different ranks.
    """
    if isinstance(dataloader, DataLoaderAdapter):
        return dataloader
    runtime = runtime or current_runtime()
    rules = Rules(
        runtime=runtime,
        shard=chosen_shard(runtime, torch_device_mesh, num_processes, process_index),
        device=(runtime.device.torch_device if device is None else device) if put_on_device else None,
        split_batches=split_batches,
        even_batches=even_batches,
        rng_types=rng_types,
        use_seedable_sampler=use_seedable_sampler,
        data_seed=data_seed,
        non_blocking=non_blocking,
        use_stateful_dataloader=use_stateful_dataloader,
        mesh=torch_device_mesh,
    )
    dispatches = decide_dispatch(dataloader, dispatch_batches, put_on_device)
    warn_of_ignored(dataloader, rules, dispatches, put_on_device, slice_fn_for_dispatch)
    check_split(dataloader, rules)
    return dispatched(dataloader, rules, slice_fn_for_dispatch) if dispatches else sharded(dataloader, rules)


def chosen_shard(runtime: Runtime, mesh: Any, num_processes: int | None, process_index: int | None) -> DataShard:
    """Return the share of this process among `num_processes`, of which those that share a model read the same."""
    topology = runtime.topology
    return DataShard.of(
        topology.rank if process_index is None else process_index,
        topology.world_size if num_processes is None else num_processes,
        mesh,
    )


def decide_dispatch(dataloader: DataLoader, dispatch_batches: bool | None, put_on_device: bool) -> bool:
    """Return whether rank 0 reads for all.

    Raises:
        ValueError: it is asked to, and batches are not put on the device.
    """
    if dispatch_batches and not put_on_device:
        raise ValueError(
            message(
                given="dispatch_batches=True with device placement off",
                why="rank 0 sends batches from device to device, so every process receives them on its device",
                allowed="dispatch_batches=True with put_on_device=True, or dispatch_batches=False",
                do="leave device placement on, or let every process read its own share (dispatch_batches=False)",
            )
        )
    return (
        put_on_device and isinstance(dataloader.dataset, IterableDataset)
        if dispatch_batches is None
        else dispatch_batches
    )


def warn_of_ignored(
    dataloader: DataLoader, rules: Rules, dispatches: bool, put_on_device: bool, slice_fn: Callable[..., Any] | None
) -> None:
    """Warn of options that have no effect together with the others."""
    if not rules.even_batches and rules.shard.count > 1:
        if dispatches:
            warn_once("`even_batches=False` has no effect on batches that are dispatched: all ranks get as many.")
        elif isinstance(dataloader.dataset, IterableDataset):
            warn_once("`even_batches=False` has no effect on iterable datasets: all ranks get as many batches.")
    if slice_fn is not None and not dispatches:
        warn_once(
            "`slice_fn_for_dispatch` has no effect: batches are not dispatched, every process reads its own share."
        )
    if rules.non_blocking and not put_on_device:
        warn_once("`non_blocking=True` has no effect: batches are not put on a device.")
    if rules.data_seed is not None and not rules.use_seedable_sampler:
        warn_once("`data_seed` has no effect without `use_seedable_sampler=True`.")


def check_split(dataloader: DataLoader, rules: Rules) -> None:
    """Refuse `split_batches` where a batch can't be cut into equal slices."""
    if rules.split_batches and rules.shard.count > 1:
        holder = dataloader.sampler if isinstance(dataloader.sampler, BatchSampler) else dataloader.batch_sampler
        size = dataloader.batch_size if dataloader.batch_size is not None else getattr(holder, "batch_size", None)
        check_divisible(size, rules.shard.count)


def sharded(dataloader: DataLoader, rules: Rules) -> DataLoaderShard:
    """Return the loader with which this process reads its share itself."""
    changes, order, lockstep = shared(dataloader, rules)
    return DataLoaderShard(
        dataloader.dataset,
        device=rules.device,
        rng_types=remaining_rng_types(rules, order),
        use_stateful_dataloader=rules.use_stateful_dataloader,
        _drop_last=drops_last(dataloader),
        _non_blocking=rules.non_blocking,
        torch_device_mesh=rules.mesh,
        base_dataloader=copy_loader(dataloader, **changes),
        runtime=rules.runtime,
        order=order,
        shard=rules.shard,
        lockstep=lockstep,
    )


def dispatched(dataloader: DataLoader, rules: Rules, slice_fn: Callable[..., Any] | None) -> DataLoaderDispatcher:
    """Return the loader that rank 0 reads for all."""
    changes: dict[str, Any] = {}
    order = Order()
    if not isinstance(dataloader.dataset, IterableDataset):
        changes, order = shared_samplers(dataloader, rules, DataShard())
    return DataLoaderDispatcher(
        dataloader.dataset,
        split_batches=rules.split_batches,
        use_stateful_dataloader=rules.use_stateful_dataloader,
        _drop_last=drops_last(dataloader),
        _non_blocking=rules.non_blocking,
        slice_fn=slice_fn,
        torch_device_mesh=rules.mesh,
        base_dataloader=copy_loader(dataloader, **changes),
        runtime=rules.runtime,
        order=order,
        shard=rules.shard,
        rng_types=remaining_rng_types(rules, order),
    )
