"""The loader of data that only rank 0 reads: it sends every process its part of each step."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

from torch.utils.data import DataLoader

from accelerate.data_loader.adapter import DataLoaderAdapter
from accelerate.data_loader.copies import copy_loader
from accelerate.data_loader.courier import Courier
from accelerate.data_loader.edge import current_runtime
from accelerate.data_loader.iterable import has_state
from accelerate.data_loader.iteration import Pass
from accelerate.data_loader.marked import Marked
from accelerate.data_loader.mover import mover_to
from accelerate.data_loader.order import Order, UnknownOrder
from accelerate.data_loader.parts import Parts, Step
from accelerate.data_loader.prepared import PreparedLoader
from accelerate.data_loader.progress import Progress
from accelerate.data_loader.rows import num_rows
from accelerate.data_loader.shares import DataShard
from accelerate.data_loader.tails import read_by
from accelerate.state.runtime import Runtime


class DataLoaderDispatcher(PreparedLoader):
    """A `DataLoader` that rank 0 reads for all.

    Args:
        dataset: the dataset; the other ranks need one too, and do not read it.
        split_batches: cut each batch into slices, instead of dealing whole batches in turn.
        skip_batches: how many batches of each process every pass leaves out at its start.
        use_stateful_dataloader: read through torchdata's `StatefulDataLoader`.
        slice_fn: `slice_fn(data, slice, process_index=, num_processes=)` cuts the part of a process out of the data
            of a whole step; by default tensors and lists are cut by rows, and nothing is cut that need not be.
        torch_device_mesh: the mesh of the run; ranks that share a model get the same part.
        iteration: the number of the first epoch.
        base_dataloader: the loader to read from.
        runtime: the facts of the run; by default those of this process.
        order: how the ranks agree on the order of an epoch.
        progress: where this loader is, when it shares that with another.
        shard: which part this process gets; by default one per rank, or what the mesh says.
        rng_types: which random generators are made equal on all ranks when a pass begins.
        **kwargs: what `torch.utils.data.DataLoader` takes.
    """

    def __init__(
        self,
        dataset: Any,
        split_batches: bool = False,
        skip_batches: int = 0,
        use_stateful_dataloader: bool = False,
        _drop_last: bool = False,
        _non_blocking: bool = False,
        slice_fn: Callable[..., Any] | None = None,
        torch_device_mesh: Any = None,
        iteration: int = 0,
        *,
        base_dataloader: DataLoader | None = None,
        runtime: Runtime | None = None,
        order: Order | None = None,
        progress: Progress | None = None,
        shard: DataShard | None = None,
        rng_types: Any = None,
        **kwargs: Any,
    ) -> None:
        DataLoaderAdapter.__init__(self, dataset, use_stateful_dataloader, base_dataloader=base_dataloader, **kwargs)
        runtime = runtime or current_runtime()
        topology = runtime.topology
        self.split_batches = split_batches
        self.slice_fn = slice_fn
        self.torch_device_mesh = torch_device_mesh
        self.device = runtime.device.torch_device
        self._drop_last = _drop_last
        self._non_blocking = _non_blocking
        self._shard = shard or DataShard.of(topology.rank, topology.world_size, torch_device_mesh)
        self._take_up(
            runtime,
            progress,
            order=order or Order(),
            shard=DataShard(0, topology.world_size),
            iteration=iteration,
            rng_types=rng_types,
            skip_batches=skip_batches,
            offset=0,
            mover=mover_to(self.device, _non_blocking),
        )

    def without_first(self, num_batches: int) -> DataLoaderDispatcher:
        """Return a loader that begins `num_batches` later and shares the epoch of this one."""
        return self._twin(skip_batches=self.skip_batches + num_batches)

    def _open(self, start: int, stream: list[dict[str, Any]] | None) -> Iterator[Any]:
        topology = self._runtime.topology
        if topology.world_size == 1:
            return self._read(start, stream)
        steps = self._lead(start, stream) if topology.rank == 0 else self._follow()
        return map(self._own, steps)

    def _lead(self, start: int, stream: list[dict[str, Any]] | None) -> Iterator[Step]:
        """Read, send, and yield steps whose first part is this rank's."""
        courier, parts = self._courier(), self._parts(begins_later=bool(start or self.progress.shift))
        try:
            for step in parts.steps(self._read(start, stream, self._batches_per_step)):
                courier.send(step)
                yield step
        except Exception as error:
            courier.fail(error)
            raise
        courier.close()

    def _read_first(self) -> list[Any]:
        """Read the first round of the epoch, which a pass that begins later has not seen; nothing if that is not known.

        An order that nobody can draw again is not known, nor is the start of a stream that was set to another place.
        """
        progress, loader = self.progress, self.base_dataloader
        if type(progress.seeds.order) is UnknownOrder:
            return []
        if progress.workers is not None:
            loader = read_by(loader, progress.workers, exactly=False)
        if self._is_stream and not loader.num_workers and has_state(self._whole_dataset):
            return []
        self._tell_epoch()
        with progress.seeds.again():
            return list(islice(copy_loader(loader), self._batches_per_step))

    def _follow(self) -> Iterator[Step]:
        """Yield the steps that rank 0 sends, with this rank's part alone."""
        courier = self._courier()
        while (step := courier.receive()) is not None:
            yield step

    def _own(self, step: Step) -> Any:
        """Return this rank's part, marked where not all of the step is real."""
        self._rows = step.rows
        return step.parts[0] if step.tail is None else Marked(step.parts[0], step.tail)

    def _courier(self) -> Courier:
        world_size, count = self._runtime.topology.world_size, self._shard.count
        numbers = [rank * count // world_size for rank in range(1, world_size)]
        return Courier(self._runtime.collectives, self._shard.index, sorted(set(numbers)))

    def _parts(self, begins_later: bool = False) -> Parts:
        read_first = self._read_first if begins_later else None
        return Parts(self._shard.count, self._read_size, self.split_batches, self._drop_last, self.slice_fn, read_first)

    @property
    def _read_size(self) -> int | None:
        """The rows of a full batch as rank 0 reads it; None: any."""
        loader = self.base_dataloader
        return loader.batch_size or getattr(loader.batch_sampler, "batch_size", None)

    @property
    def splits_batches(self) -> bool:
        """Whether each batch of the user's loader is cut into slices for the processes."""
        return self.split_batches

    @property
    def _batches_per_step(self) -> int:
        return 1 if self.split_batches else self._shard.count

    def _expected_remainder(self) -> int:
        return -1  # known from what rank 0 read, in the last step

    def _see_end(self, this_pass: Pass, batch: Any) -> None:
        rows = num_rows(batch) if self._runtime.topology.world_size == 1 else self._rows
        this_pass.remainder = -1 if rows is None else rows

    def _is_ragged(self) -> bool:
        return self._read_size is None

    def __len__(self) -> int:
        batches, per_step = len(self.base_dataloader), self._batches_per_step
        steps = batches // per_step if self._drop_last else -(-batches // per_step)
        return max(steps - self.skip_batches, 0)

    @property
    def total_batch_size(self) -> int | None:
        """The samples of all processes together in one step; None when batches are of any size."""
        return None if self._read_size is None else self._read_size * self._batches_per_step
