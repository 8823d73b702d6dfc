"""What all prepared loaders have in common: one pass, and where it stands.

One batch is read ahead, so that the last one is known to be the last before the training step sees it. What can be
known once an epoch (the order, the share, what is real in the last step) is not computed per batch.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from itertools import islice
from typing import Any

import torch
from torch.utils.data import IterableDataset

from accelerate.base.messages import warn_once
from accelerate.comm.collectives import Collectives
from accelerate.config.enums import RNGType
from accelerate.data_loader.adapter import DataLoaderAdapter
from accelerate.data_loader.copies import copy_loader
from accelerate.data_loader.draws import watched
from accelerate.data_loader.edge import current_runtime
from accelerate.data_loader.iterable import IterableDatasetShard, has_state, is_complete
from accelerate.data_loader.iteration import DataLoaderStateMixin, Pass, length_of
from accelerate.data_loader.marked import Marked
from accelerate.data_loader.mover import Mover
from accelerate.data_loader.order import Order, Seeds, UnknownOrder, order_of, with_own_generator
from accelerate.data_loader.pace import Pace
from accelerate.data_loader.progress import Progress
from accelerate.data_loader.rng import synchronize_rng_states
from accelerate.data_loader.sampler_shards import counts_itself, skipping, with_sampler
from accelerate.data_loader.samplers import get_sampler, sampler_chain, unwrapped
from accelerate.data_loader.shares import DataShard
from accelerate.data_loader.stateful import Snapshots, fits
from accelerate.data_loader.tails import beginning_at, read_by
from accelerate.state.runtime import Runtime

END: Any = object()

READS_AGAIN = (
    "Resuming inside an epoch of a stream that has no state, or none that is complete (a shuffle buffer is in none): "
    "what was given out before is read again and left out. This finds the right place only if the stream yields the "
    "same samples in the same order; with use_stateful_dataloader=True and a dataset that has `state_dict` and "
    "`load_state_dict`, it is restored instead."
)


class PreparedLoader(DataLoaderAdapter, DataLoaderStateMixin):
    """A loader that reads what one process sees, in the order that all agree on.

    A subclass says where batches come from (`_open`) and what is real in the last step (`_last_counts`), and calls
    `_take_up` at the end of its constructor.
    """

    def _take_up(
        self,
        runtime: Runtime,
        progress: Progress | None,
        *,
        order: Order,
        shard: DataShard | None,
        iteration: int,
        rng_types: list[str | RNGType] | None,
        skip_batches: int,
        offset: int,
        mover: Mover,
    ) -> None:
        """Complete the construction: take the run's facts, and give the wrapped loader its own randomness.

        Args:
            runtime: the facts of the run.
            progress: where this loader is, when it shares that with another.
            order: how the ranks agree on the order of an epoch.
            shard: which share of the data it reads; by default one per rank.
            iteration: the number of the first epoch.
            rng_types: which random generators are made equal on all ranks when a pass begins.
            skip_batches: how many batches every pass leaves out.
            offset: how many batches the wrapped loader leaves out already.
            mover: brings batches to the device.
        """
        self._runtime = runtime
        self._mover = mover
        self.gradient_state = runtime.gradient_state
        self.rng_types = rng_types
        self.skip_batches = skip_batches
        self._offset = offset
        if progress is None:
            shard = shard or DataShard(runtime.topology.rank, runtime.topology.world_size)
            seeds = Seeds(order, self.base_dataloader.generator, shard, runtime.collectives)
            progress = Progress(seeds, iteration)
        self.progress = progress
        self.base_dataloader = copy_loader(self.base_dataloader, generator=progress.seeds.workers)
        self._reading = self.base_dataloader  # what the present pass reads
        self._is_stream = isinstance(self.base_dataloader.dataset, IterableDataset)

    @abstractmethod
    def _open(self, start: int, stream: list[dict[str, Any]] | None) -> Iterator[Any]:
        """Return the batches of a pass from number `start` on, not moved yet; `stream` is a state to begin from."""

    @abstractmethod
    def without_first(self, num_batches: int) -> PreparedLoader:
        """Return a loader of this class that begins `num_batches` later and shares the epoch of this one."""

    def _twin(self, **attributes: Any) -> Any:
        """Return a loader with the same progress that differs in some attributes, and is not marked as prepared."""
        twin = type(self).__new__(type(self))
        twin.__dict__.update(self.__dict__, **attributes)
        twin.__dict__.pop("_is_accelerate_prepared", None)
        return twin

    @abstractmethod
    def _see_end(self, this_pass: Pass, batch: Any) -> None:
        """Write into `this_pass` what is real in its last step; `batch`, the last one, does not tell itself."""

    @property
    def _together(self) -> Collectives | None:
        """The ranks that read a stream together; None where what is read follows from indices, or one rank reads."""
        return None

    def _is_ragged(self) -> bool:
        """Return whether the ranks may get batches of different sizes in any step."""
        return False

    def __iter__(self) -> Iterator[Any]:
        state, progress = self.gradient_state, self.progress
        facts = vars(state)  # shared by the process; attributes of a state cost more to look up
        if state.between_batches is not None:
            state.between_batches(self, None)
        start, stream = self._begin()
        this_pass = Pass(self, self.remainder, self._is_ragged())
        given = start
        state.enter(this_pass)
        try:
            settled, arrive = self._mover.settled, self._mover.arrive
            batches = self._mover.ahead(self._open(start, stream))
            batch = next(batches, END)
            if batch is not END:
                for upcoming in batches:
                    if type(batch) is not settled and type(batch := arrive(batch)) is Marked:
                        this_pass.tail, batch = batch.tail, batch.data
                    elif this_pass.tail is not None:
                        this_pass.tail = None
                    this_pass.turn = facts["turn"] = facts["turn"] + 1
                    progress.batches = given = given + 1
                    yield batch
                    if (between := facts["between_batches"]) is not None:
                        between(self, this_pass)
                    batch = upcoming
                batch = self._announce_end(this_pass, arrive(batch))
                this_pass.turn = state.turn = state.turn + 1
                progress.batches = given = given + 1
                yield batch
                if state.between_batches is not None:
                    state.between_batches(self, this_pass)
            self._compare_length(start, given)
            if given:  # an empty loader stays in its epoch
                progress.end()
        finally:
            state.leave(this_pass)

    def _compare_length(self, start: int, given: int) -> None:
        """Warn where samplers, which decide how much there is, gave another number of batches than they say."""
        if self._is_stream or self.progress.shift or counts_itself(self._reading):
            return
        length = length_of(self)
        if length is None:
            return
        announced = self._offset + self.skip_batches + length
        if given != announced and (given > start or not start):
            sampler = self.get_sampler() or unwrapped(self.batch_sampler)
            warn_once(
                f"{type(sampler).__name__} announced {announced} batches per process by its `__len__`, and gave "
                f"{given}. All were given out; what is counted by len(loader), as schedules are, is off."
            )

    def _begin(self) -> tuple[int, list[dict[str, Any]] | None]:
        """Agree on the order of a pass and return where it begins; see `Progress.begin`."""
        if self._runtime.collectives.world_size > 1:
            others = [kind for kind in self.rng_types or () if getattr(kind, "value", kind) != "generator"]
            synchronize_rng_states(self._runtime, others)
        self._tell_epoch()
        self.reset()
        self.remainder = self._expected_remainder()
        return self.progress.begin(self._offset + self.skip_batches)

    def _expected_remainder(self) -> int:
        if self._drop_last:
            return -1
        length = length_of(self.get_sampler())
        if length is None:
            length = length_of(self._whole_dataset)
        per_step = self.total_batch_size
        return length % per_step if length is not None and per_step else -1

    def _read(self, start: int, stream: list[dict[str, Any]] | None, per_step: int = 1) -> Iterator[Any]:
        """Return what the wrapped loader yields from number `start` on, reading `per_step` batches for each."""
        loader, shift = self.base_dataloader, self.progress.shift
        skip = (start - self._offset) * per_step
        if self.progress.workers is not None:
            loader = read_by(loader, self.progress.workers, exactly=stream is not None)
        if shift:
            loader, later = beginning_at(loader, shift, self._pace(self.progress.workers))
            skip += later
        resumes = shift or start > self._offset + self.skip_batches
        seeds = self.progress.seeds
        if resumes and seeds.shard.index == 0 and type(seeds.order) is not UnknownOrder:  # which draws as well
            loader = watched(loader)
        self._reading = loader
        if not self._is_stream:
            return iter(skipping(loader, skip) if skip else loader)
        if stream is not None and not (fits(stream, per_step, self._together) and is_complete(loader.dataset)):
            stream = None
        if resumes and not (stream and has_state(self._whole_dataset)):
            warn_once(READS_AGAIN)
        if hasattr(loader, "load_state_dict"):
            batches = self.progress.snapshots = Snapshots(loader, per_step, stream, self._together)
            return islice(batches, max(skip - batches.read, 0), None)
        return islice(loader, skip, None) if skip else iter(loader)

    def _announce_end(self, this_pass: Pass, batch: Any) -> Any:
        """Say that the batch about to be handed out is the last, and return it without its mark."""
        if type(batch) is Marked:
            this_pass.tail, this_pass.remainder, batch = batch.tail, batch.tail.remainder, batch.data
        else:
            this_pass.tail = None
            self._see_end(this_pass, batch)
        this_pass.end_of_dataloader = self.end_of_dataloader = True
        self.remainder = this_pass.remainder
        return batch

    def __len__(self) -> int:
        return max(len(self.base_dataloader) - self.skip_batches, 0)

    @property
    def iteration(self) -> int:
        """The number of the epoch that is running or comes next; assignable."""
        return self.progress.epoch

    @iteration.setter
    def iteration(self, iteration: int) -> None:
        self.progress.epoch = iteration

    @property
    def generator(self) -> torch.Generator | None:
        """The generator that the user gave the loader."""
        return self.progress.seeds.source

    @property
    def synchronized_generator(self) -> torch.Generator | None:
        """What the order is drawn from, the same on all ranks; None when nothing is drawn."""
        return self.progress.seeds.order.generator

    @property
    def total_dataset_length(self) -> int:
        """The number of samples of the whole dataset, of all processes together."""
        dataset = self._whole_dataset
        return dataset.total_length if hasattr(dataset, "total_length") else len(dataset)

    @property
    @abstractmethod
    def splits_batches(self) -> bool:
        """Whether each batch of the user's loader is cut into slices for the processes."""

    @property
    @abstractmethod
    def _batches_per_step(self) -> int:
        """How many batches of the user's loader all processes together get in one step."""

    def _pace(self, workers: int | None = None) -> Pace:
        """Return how this loader takes its steps, with as many workers as it has or with another number."""
        loader = self.base_dataloader
        if not isinstance(loader.dataset, IterableDataset):
            return Pace(self.total_batch_size, self._batches_per_step)
        workers = loader.num_workers if workers is None else workers
        share = loader.dataset if isinstance(loader.dataset, IterableDatasetShard) else None
        readers = None if share is None else share.readers(workers)
        return Pace(self.total_batch_size, self._batches_per_step, readers, workers)

    @property
    def _whole_dataset(self) -> Any:
        dataset = self.base_dataloader.dataset
        return dataset.dataset if isinstance(dataset, IterableDatasetShard) else dataset

    def set_epoch(self, epoch: int) -> None:
        """Choose the number of the next epoch, for this loader, its samplers and its dataset."""
        self.iteration = epoch
        self._tell_epoch()

    def _tell_epoch(self) -> None:
        for listener in (*sampler_chain(self.base_dataloader), self.dataset):
            if hasattr(listener, "set_epoch"):
                listener.set_epoch(self.iteration)

    def get_sampler(self) -> Any:
        """Return the sampler that decides the order; see :func:`get_sampler`."""
        return get_sampler(self.base_dataloader)

    def set_sampler(self, sampler: Any) -> None:
        """Let another sampler of single indices decide the order, from the next pass on."""
        loader, sampler = self.base_dataloader, with_own_generator(sampler)
        order = self.progress.seeds.order = order_of(sampler, shared=self._runtime.collectives.world_size > 1)
        if loader.batch_sampler is None:
            changes = {"sampler": with_sampler(loader.sampler, sampler, order.opened)}
        else:
            changes = {"sampler": sampler, "batch_sampler": with_sampler(loader.batch_sampler, sampler, order.opened)}
        self.base_dataloader = copy_loader(loader, **changes)

    def state_dict(self) -> dict[str, Any]:
        """Return where this loader stands: epoch, batches given out, and what the order was drawn from."""
        return self.progress.state(self._pace(self.progress.workers))

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Let the next pass continue where :meth:`state_dict` was called, on this or another number of processes.

        Raises:
            ValueError: the state was written by a later version, or its place can't be found with this step size.
        """
        if "version" not in state_dict and hasattr(self.base_dataloader, "load_state_dict"):
            self.base_dataloader.load_state_dict(state_dict)  # of the wrapped loader alone, as others save it
        else:
            self.progress.load(state_dict, self._pace(state_dict.get("workers")))

    def problem_with(self, state_dict: dict[str, Any]) -> str | None:
        """Tell why the place of a state can't be found by this loader; None where it can."""
        return self._pace(state_dict["workers"]).problem(state_dict)

    def _carried(self) -> dict[str, Any]:
        carried = DataLoaderAdapter._carried(self)
        left_here = ("_runtime", "gradient_state", "_reading")
        return {name: value for name, value in carried.items() if name not in left_here}

    def _rejoin(self) -> None:
        self._runtime = current_runtime()
        self.gradient_state = self._runtime.gradient_state
        self._reading = self.base_dataloader
        self.progress.seeds.collectives = self._runtime.collectives
