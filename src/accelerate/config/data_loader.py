"""How a prepared data loader shares its data out over the processes."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class DataLoaderConfiguration:
    """The rules by which loaders are prepared.

    Args:
        split_batches: the loader's batch size is that of all processes together, rather than that of each.
        dispatch_batches: rank 0 alone reads the data and sends each process its part; None: for iterable datasets only.
        even_batches: repeat samples at the end so that every process gets as many batches.
        use_seedable_sampler: shuffle by seed and epoch, the same on any number of processes.
        data_seed: the seed of that sampler; None takes torch's.
        non_blocking: overlap copies to the device with computation; needs pinned memory.
        use_stateful_dataloader: keep the position inside an epoch in checkpoints, with torchdata's loader.
    """

    split_batches: bool = False
    dispatch_batches: bool | None = None
    even_batches: bool = True
    use_seedable_sampler: bool = False
    data_seed: int | None = None
    non_blocking: bool = False
    use_stateful_dataloader: bool = False
