"""torchdata's `StatefulDataLoader` as the engine of a prepared loader."""

from __future__ import annotations

from typing import Any

from torch.utils.data import DataLoader, IterableDataset

from accelerate.base.messages import message

SETTINGS = (
    "num_workers",
    "collate_fn",
    "pin_memory",
    "timeout",
    "worker_init_fn",
    "multiprocessing_context",
    "generator",
    "prefetch_factor",
    "persistent_workers",
    "pin_memory_device",
    "in_order",
)


def stateful_class() -> Any:
    """Return torchdata's loader class.

    Raises:
        ImportError: torchdata is missing or too old.
    """
    try:
        from torchdata.stateful_dataloader import StatefulDataLoader
    except ImportError as error:
        raise ImportError(
            message(
                given="use_stateful_dataloader=True",
                why=f"it needs torchdata's StatefulDataLoader, which does not import ({error})",
                allowed="torchdata 0.8.0 or later",
                do="pip install 'torchdata>=0.8.0', or leave use_stateful_dataloader off",
            )
        ) from error
    return StatefulDataLoader


def stateful_loader(loader: DataLoader) -> DataLoader:
    """Return a `StatefulDataLoader` with the settings of a loader; one that is stateful already as it is."""
    kind = stateful_class()
    if isinstance(loader, kind):
        return loader
    settings = {name: getattr(loader, name) for name in SETTINGS if hasattr(loader, name)}
    if not settings["pin_memory_device"]:  # deprecated, and says so when it is given at all
        del settings["pin_memory_device"]
    if loader.batch_sampler is not None and not isinstance(loader.dataset, IterableDataset):
        return kind(loader.dataset, batch_sampler=loader.batch_sampler, **settings)
    return kind(
        loader.dataset, batch_size=loader.batch_size, sampler=loader.sampler, drop_last=loader.drop_last, **settings
    )
