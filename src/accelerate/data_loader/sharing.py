"""What differs in the copy of a loader with which one process reads its share.

Torch's samplers are copied with a generator of their own, batch samplers are wrapped, streams too; whatever else the
user's loader holds stays as it is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from zlib import crc32

import torch
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, RandomSampler

from accelerate.base.messages import message, warn_once
from accelerate.comm.collectives import Collectives
from accelerate.config.enums import RNGType
from accelerate.data_loader.copies import copy_with
from accelerate.data_loader.iterable import IterableDatasetShard, SourceShard, num_sources, shuffle_states
from accelerate.data_loader.iteration import length_of
from accelerate.data_loader.lockstep import Lockstep
from accelerate.data_loader.marked import MarkingCollate
from accelerate.data_loader.order import Order, gather_numbers, order_of, with_own_generator
from accelerate.data_loader.sampler_shards import BatchSamplerShard, SamplerShard
from accelerate.data_loader.samplers import SeedableRandomSampler, inner_sampler, with_inner
from accelerate.data_loader.shares import DataShard
from accelerate.state.runtime import Runtime

OTHER_STREAM = "Every rank reads the whole stream, so it has to be the same on all of them, and here it isn't."
UNEVEN_SOURCES = "Every rank reads its own shards of the stream; shards of equal size would end together."


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


def drops_last(dataloader: DataLoader) -> bool:
    """Return whether a loader leaves out an incomplete last batch."""
    return dataloader.drop_last or getattr(dataloader.batch_sampler, "drop_last", False)


def shared(dataloader: DataLoader, rules: Rules) -> tuple[dict[str, Any], Order, Lockstep | None]:
    """Return the attributes of the copied loader that differ, how its order is agreed on, and what ends it together."""
    if not isinstance(dataloader.dataset, IterableDataset):
        return *shared_samplers(dataloader, rules, rules.shard), None
    changes, lockstep = shared_stream(dataloader, rules)
    return changes, Order(), lockstep


def shared_stream(dataloader: DataLoader, rules: Rules) -> tuple[dict[str, Any], Lockstep | None]:
    """Return the attributes of the copied loader of a stream that differ, and what keeps the ranks together."""
    if rules.shard.count == 1:
        return {}, None
    check_same_shuffle(dataloader.dataset, rules.runtime.collectives)
    stream = stream_share(dataloader, rules)
    changes: dict[str, Any] = {"dataset": stream, "collate_fn": MarkingCollate(dataloader.collate_fn)}
    share = None
    if dataloader.batch_size is not None:
        share = changes["batch_size"] = stream.deal.share
        changes["batch_sampler"] = copy_with(dataloader.batch_sampler, batch_size=share)
    because = OTHER_STREAM if stream.sources is None else UNEVEN_SOURCES
    return changes, Lockstep(rules.shard, share, stream.drop_last, because)


def stream_share(dataloader: DataLoader, rules: Rules) -> IterableDatasetShard:
    """Return this process's share of a stream: of its sources, where there are enough, or else of its samples."""
    shard, whole_items = rules.shard, dataloader.batch_size is None
    size, drop_last = dataloader.batch_size or 1, drops_last(dataloader)
    if num_sources(dataloader.dataset) >= shard.count and not rules.split_batches:
        return SourceShard(dataloader.dataset, size, drop_last, shard.count, shard.index, whole_items)
    return IterableDatasetShard(
        dataloader.dataset,
        size,
        drop_last,
        shard.count,
        shard.index,
        rules.split_batches,
        marks=True,
        whole_items=whole_items,
    )


def remaining_rng_types(rules: Rules, order: Order) -> list[str | RNGType] | None:
    """Return the generators to make equal; "generator" only where there is one and someone to agree with."""
    if rules.rng_types is None or (order.generator is not None and rules.shard.count > 1):
        return rules.rng_types
    return [each for each in rules.rng_types if getattr(each, "value", each) != "generator"]


def shared_samplers(dataloader: DataLoader, rules: Rules, shard: DataShard) -> tuple[dict[str, Any], Order]:
    """Return the attributes of the copied loader that differ, and how its order is agreed on."""
    name = "sampler" if dataloader.batch_sampler is None else "batch_sampler"
    sampler = getattr(dataloader, name)
    seed = agreed_seed(dataloader, sampler, rules, shard)
    if rules.use_seedable_sampler:
        sampler = seedable(sampler, seed)
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


def agreed_seed(dataloader: DataLoader, sampler: Any, rules: Rules, shard: DataShard) -> int:
    """Return the seed of seedable samplers that all ranks use, having compared the lengths of what they share out.

    Raises:
        ValueError: ranks have datasets or samplers of different lengths, and would wait for each other in vain.
    """
    seed = torch.random.initial_seed() if rules.data_seed is None else rules.data_seed
    collectives = rules.runtime.collectives
    if collectives.world_size == 1 or not (shard.count > 1 or rules.use_seedable_sampler):
        return seed
    lengths = [-1 if length is None else length for length in map(length_of, (dataloader.dataset, sampler))]
    numbers = gather_numbers(collectives, [seed, *lengths])
    if shard.count > 1:
        _, of_datasets, of_samplers = zip(*numbers, strict=True)
        check_equal("datasets", of_datasets)
        check_equal("samplers" if dataloader.batch_sampler is None else "batch samplers", of_samplers)
    return numbers[0][0] if rules.data_seed is None else rules.data_seed


def check_equal(what: str, lengths: tuple[int, ...]) -> None:
    """Raise where ranks found different lengths; -1 stands for an unknown one."""
    if len(set(lengths)) == 1:
        return
    ranks: dict[int, list[str]] = {}
    for rank, length in enumerate(lengths):
        ranks.setdefault(length, []).append(str(rank))
    found = [
        f"{'an unknown length' if length < 0 else length} on rank{'s' if len(each) > 1 else ''} {', '.join(each)}"
        for length, each in ranks.items()
    ]
    raise ValueError(
        message(
            given=f"{what} of different lengths: {'; '.join(found)}",
            why="every rank holds the whole data and reads its share of it, so ranks would see other samples than "
            "their own, and some would end before the others and be waited for",
            allowed=f"{what} of the same length on every rank",
            do="build the data in the same way on every rank (same files, filters and seeds); where each rank already "
            "holds a part of its own, leave the loader unprepared, or call prepare_data_loader with num_processes=1 "
            "and process_index=0",
        )
    )


def check_same_shuffle(dataset: Any, collectives: Collectives) -> None:
    """Raise where ranks shuffle a stream of the `datasets` library by different seeds, and would read other samples.

    Raises:
        ValueError: they do.
    """
    states = shuffle_states(dataset)
    if states and len({tuple(each) for each in gather_numbers(collectives, [crc32(repr(states).encode())])}) > 1:
        raise ValueError(
            message(
                given="a stream that every rank shuffles in another order",
                why="each rank reads its share of it, so some samples would be read twice, and others never",
                allowed="stream.shuffle(seed=...) with the same seed on every rank, or dispatch_batches=True",
                do="pass a seed to `shuffle`; set_epoch, which loaders call, changes the order by epoch",
            )
        )


def seedable(sampler: Any, seed: int) -> Any:
    """Return the (batch) sampler with a :class:`SeedableRandomSampler` in the place of torch's random one."""
    inner = inner_sampler(sampler)
    if not isinstance(inner, RandomSampler) or isinstance(inner, SeedableRandomSampler):
        return sampler
    if type(inner) is not RandomSampler:
        warn_once(
            f"`use_seedable_sampler=True` has no effect on {type(inner).__name__}, which shuffles in its own way."
        )
        return sampler
    return with_inner(
        sampler,
        SeedableRandomSampler(
            inner.data_source,
            replacement=inner.replacement,
            num_samples=inner._num_samples,
            data_seed=seed % 2**64,
        ),
    )
