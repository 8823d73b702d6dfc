"""Starting later: loaders that leave out their first batches."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

from torch.utils.data import DataLoader, IterableDataset

from accelerate.data_loader.adapter import DataLoaderAdapter
from accelerate.data_loader.edge import current_runtime
from accelerate.data_loader.iteration import DataLoaderStateMixin, Pass
from accelerate.data_loader.prepared import END, PreparedLoader
from accelerate.data_loader.sampler_shards import skipping
from accelerate.data_loader.turns import TurnLoader
from accelerate.state.runtime import Runtime


class SkipDataLoader(DataLoaderAdapter, DataLoaderStateMixin):
    """A loader that reads its first batches and drops them, for data that can only be read in sequence.

    Args:
        dataset: the dataset.
        skip_batches: how many batches to leave out.
        use_stateful_dataloader: build torchdata's `StatefulDataLoader`.
        base_dataloader: the loader, or any iterable of batches, to read from.
        runtime: the facts of the run; by default those of this process.
        **kwargs: what `torch.utils.data.DataLoader` takes.
    """

    def __init__(
        self,
        dataset: Any,
        skip_batches: int = 0,
        use_stateful_dataloader: bool = False,
        *,
        base_dataloader: Any = None,
        runtime: Runtime | None = None,
        **kwargs: Any,
    ) -> None:
        DataLoaderAdapter.__init__(self, dataset, use_stateful_dataloader, base_dataloader=base_dataloader, **kwargs)
        self.skip_batches = skip_batches
        self.gradient_state = (runtime or current_runtime()).gradient_state

    def __iter__(self) -> Iterator[Any]:
        state, this_pass = self.gradient_state, Pass(self)
        self.reset()
        state.enter(this_pass)
        try:
            batches = islice(self.base_dataloader, self.skip_batches, None)
            batch = next(batches, END)
            while batch is not END:
                upcoming = next(batches, END)
                this_pass.end_of_dataloader = self.end_of_dataloader = upcoming is END
                this_pass.turn = state.turn = state.turn + 1
                yield batch
                batch = upcoming
        finally:
            state.leave(this_pass)

    def __len__(self) -> int:
        return max(len(self.base_dataloader) - self.skip_batches, 0)


def skip_first_batches(dataloader: Any, num_batches: int = 0) -> Any:
    """Return a loader that leaves out the first batches of every pass.

    Args:
        dataloader: a loader, prepared or not, or any iterable of batches.
        num_batches: how many to leave out, counted from the start of the epoch.

    Returns:
        Of a prepared loader, one of the same class that shares its epoch: finishing the skipped one moves both on. Of
        a plain `DataLoader`, a plain one. Where only reading can skip, a :class:`SkipDataLoader`.
    """
    if isinstance(dataloader, PreparedLoader | TurnLoader):
        return dataloader.without_first(num_batches)
    if isinstance(dataloader, DataLoader) and not isinstance(dataloader.dataset, IterableDataset):
        return skipping(dataloader, num_batches)
    return SkipDataLoader(None, num_batches, base_dataloader=dataloader)
