"""`prepare_data_loader`: one decision about how a loader is shared out, then one object.

The user's loader is copied with another sampler, never taken apart: its class, workers, collate function and whatever
else its owner put into it stay.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, RandomSampler

from accelerate.base.messages import message, warn_once
from accelerate.config.enums import RNGType
from accelerate.data_loader.adapter import DataLoaderAdapter
from accelerate.data_loader.copies import copy_loader, copy_with
from accelerate.data_loader.dispatcher import DataLoaderDispatcher
from accelerate.data_loader.edge import current_runtime
from accelerate.data_loader.iterable import IterableDatasetShard
from accelerate.data_loader.marked import MarkingCollate
from accelerate.data_loader.order import Order, agree_on, order_of, with_own_generator
from accelerate.data_loader.sampler_shards import BatchSamplerShard, SamplerShard, check_divisible
from accelerate.data_loader.samplers import SeedableRandomSampler, inner_sampler, with_inner
from accelerate.data_loader.shard import DataLoaderShard
from accelerate.data_loader.shares import DataShard
from accelerate.state.runtime import Runtime


@dataclass(frozen=True)
class Rules:
    """How a loader is to be shared out; the fields are the arguments of :func:`prepare_data_loader`."""

    runtime: Runtime
    shard: DataShard
    device: torch.device | str | int | None
    split_batches: bool
    even_batches: bool
    rng_types: list[str | RNGType] | None
    use_seedable_sampler: bool
    data_seed: int | None
    non_blocking: bool
    use_stateful_dataloader: bool
    mesh: Any


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
            or a share that doesn't exist.
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
    warn_of_ignored(rules, dispatches, put_on_device, slice_fn_for_dispatch)
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


def warn_of_ignored(rules: Rules, dispatches: bool, put_on_device: bool, slice_fn: Callable[..., Any] | None) -> None:
    """Warn of options that have no effect together with the others."""
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
    if isinstance(dataloader.dataset, IterableDataset):
        changes, order = shared_stream(dataloader, rules), Order()
    else:
        changes, order = shared_samplers(dataloader, rules, rules.shard)
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


def drops_last(dataloader: DataLoader) -> bool:
    """Return whether a loader leaves out an incomplete last batch."""
    return dataloader.drop_last or getattr(dataloader.batch_sampler, "drop_last", False)


def shared_stream(dataloader: DataLoader, rules: Rules) -> dict[str, Any]:
    """Return the attributes of the copied loader of a stream that differ."""
    shard, batch_size = rules.shard, dataloader.batch_size
    if shard.count == 1:
        return {}
    stream = IterableDatasetShard(
        dataloader.dataset,
        batch_size or 1,
        drops_last(dataloader),
        shard.count,
        shard.index,
        rules.split_batches,
        marks=True,
        whole_items=batch_size is None,
    )
    changes: dict[str, Any] = {"dataset": stream, "collate_fn": MarkingCollate(dataloader.collate_fn)}
    if batch_size is not None:
        changes["batch_size"] = stream.deal.share
        changes["batch_sampler"] = copy_with(dataloader.batch_sampler, batch_size=stream.deal.share)
    return changes


def remaining_rng_types(rules: Rules, order: Order) -> list[str | RNGType] | None:
    """Return the generators to make equal; "generator" only where there is one and someone to agree with."""
    if rules.rng_types is None or (order.generator is not None and rules.shard.count > 1):
        return rules.rng_types
    return [each for each in rules.rng_types if getattr(each, "value", each) != "generator"]


def shared_samplers(dataloader: DataLoader, rules: Rules, shard: DataShard) -> tuple[dict[str, Any], Order]:
    """Return the attributes of the copied loader that differ, and how its order is agreed on."""
    name = "sampler" if dataloader.batch_sampler is None else "batch_sampler"
    sampler = getattr(dataloader, name)
    if rules.use_seedable_sampler:
        sampler = seedable(sampler, rules)
    sampler = with_own_generator(sampler)
    changes, order = {name: sampler}, order_of(sampler, shared=shard.count > 1)
    if dataloader.batch_size is not None:
        changes["sampler"] = inner_sampler(sampler)
    if shard.count > 1:
        whole_items = name == "sampler" and not isinstance(sampler, BatchSampler)
        changes[name] = sampler_share(sampler, rules, whole_items, order)
        if dataloader.batch_size is not None and rules.split_batches:
            changes["batch_size"] = dataloader.batch_size // rules.shard.count
    return changes, order


def sampler_share(sampler: Any, rules: Rules, whole_items: bool, order: Order) -> BatchSamplerShard | SamplerShard:
    """Return the sampler that yields this process's share of the batches of another, or of its single items."""
    shard = rules.shard
    if whole_items:
        return SamplerShard(sampler, shard.count, shard.index, rules.even_batches, opened=order.opened)
    return BatchSamplerShard(
        sampler, shard.count, shard.index, rules.split_batches, rules.even_batches, opened=order.opened
    )


def seedable(sampler: Any, rules: Rules) -> Any:
    """Return the (batch) sampler with a :class:`SeedableRandomSampler` in the place of torch's random one."""
    inner = inner_sampler(sampler)
    if not isinstance(inner, RandomSampler) or isinstance(inner, SeedableRandomSampler):
        return sampler
    if type(inner) is not RandomSampler:
        warn_once(
            f"`use_seedable_sampler=True` has no effect on {type(inner).__name__}, which shuffles in its own way."
        )
        return sampler
    seed = rules.data_seed
    if seed is None:
        (seed,) = agree_on(rules.runtime.collectives, [torch.random.initial_seed()])
    return with_inner(
        sampler,
        SeedableRandomSampler(
            inner.data_source,
            replacement=inner.replacement,
            num_samples=inner._num_samples,
            data_seed=seed % 2**64,
        ),
    )
