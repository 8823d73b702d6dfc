"""Passes over data loaders: the same reading by hand in plain torch beside the library's prepared loader.

A batch has 16 samples of 64 numbers: small on purpose, so that what the library adds is not hidden by reading. Uses
the public API only, so that the same file measures either library.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from timing import paired_blocks, worker_parser, write
from torch.utils.data import DataLoader, Dataset, DistributedSampler, IterableDataset, Subset, default_collate

from accelerate import Accelerator, DataLoaderConfiguration, skip_first_batches

BATCH = 16
SAMPLES = 400 * BATCH  # of one process
DISPATCHED = 150  # steps
FIELDS = {
    "input_ids": (64,),
    "attention_mask": (64,),
    "token_type_ids": (64,),
    "labels": (64,),
    "pixels": (3, 8, 8),
    "box": (4,),
    "weight": (1,),
}
Pass = Callable[[], object]


class Rows(Dataset):
    """A tensor, a row of which is a sample."""

    def __init__(self, size: int = SAMPLES) -> None:
        self.rows = torch.randn(size, 64)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> torch.Tensor:
        return self.rows[index]


class Records(Dataset):
    """Samples that are dictionaries of 7 tensors, in two levels."""

    def __init__(self, size: int = SAMPLES) -> None:
        self.fields = {name: torch.randn(size, *shape) for name, shape in FIELDS.items()}

    def __len__(self) -> int:
        return len(self.fields["box"])

    def __getitem__(self, index: int) -> dict[str, Any]:
        sample: dict[str, Any] = {name: column[index] for name, column in self.fields.items()}
        sample["target"] = {"box": sample.pop("box"), "weight": sample.pop("weight")}
        return sample


class Stream(IterableDataset):
    """The rows of a tensor one after the other, in as many shards as there are processes."""

    def __init__(self, rows: torch.Tensor, num_shards: int = 1) -> None:
        self.rows = rows
        self.num_shards = num_shards

    def __iter__(self) -> Iterator[torch.Tensor]:
        for index in range(len(self.rows)):
            yield self.rows[index]

    def shard(self, num_shards: int, index: int) -> Stream:
        """Return one of several parts."""
        return Stream(self.rows.chunk(num_shards)[index])


def finish(batches: Iterable[Any]) -> None:
    """Read to the end."""
    for _ in batches:
        pass


def prepared(loader: DataLoader, **configuration: Any) -> DataLoader:
    """Return the loader as the library prepares it."""
    return Accelerator(cpu=True, dataloader_config=DataLoaderConfiguration(**configuration)).prepare(loader)


def one_process() -> dict[str, tuple[Pass, Pass, int]]:
    """Return base and library of the rows measured in one process, and the batches in a pass."""
    rows, records, stream = Rows(), Records(), Stream(torch.randn(SAMPLES, 64))
    found = {}
    for row, data in {"map": rows, "iterable": stream, "nested": records}.items():
        plain = DataLoader(data, batch_size=BATCH)
        ours = prepared(DataLoader(data, batch_size=BATCH))
        found[row] = (lambda plain=plain: finish(plain), lambda ours=ours: finish(ours), SAMPLES // BATCH)
    found |= stateful(rows)
    for skipped in (5, 395, 3995):
        found[f"skip_{skipped}"] = skipping(skipped)
    return found


def stateful(rows: Dataset) -> dict[str, tuple[Pass, Pass, int]]:
    """Return what torchdata's loader costs; nothing where it is not installed."""
    try:
        from torchdata.stateful_dataloader import StatefulDataLoader
    except ImportError:
        return {}
    plain = StatefulDataLoader(rows, batch_size=BATCH)
    ours = prepared(DataLoader(rows, batch_size=BATCH), use_stateful_dataloader=True)
    return {"stateful": (lambda: finish(plain), lambda: finish(ours), SAMPLES // BATCH)}


def skipping(skipped: int) -> tuple[Pass, Pass, int]:
    """Return the last 5 batches of an epoch by a loader that is built over them, and by skipping the others."""
    rows = Rows((skipped + 5) * BATCH)
    loader = prepared(DataLoader(rows, batch_size=BATCH))

    def base() -> None:
        finish(DataLoader(Subset(rows, range(skipped * BATCH, len(rows))), batch_size=BATCH))

    return base, lambda: finish(skip_first_batches(loader, skipped)), 1


def several_processes() -> dict[str, tuple[Pass, Pass, int]]:
    """Return base and library of the rows measured in several processes, and the batches of each in a pass."""
    rank, size = dist.get_rank(), dist.get_world_size()
    rows, records = Rows(size * SAMPLES), Records(size * SAMPLES)
    whole = torch.randn(size * SAMPLES, 64)
    half = DataLoader(Stream(whole.chunk(size)[rank]), batch_size=BATCH)

    def sampled(data: Dataset, shuffle: bool) -> tuple[Pass, Pass, int]:
        plain = DataLoader(data, batch_size=BATCH, sampler=DistributedSampler(data, shuffle=shuffle))
        ours = prepared(DataLoader(data, batch_size=BATCH, shuffle=shuffle))
        return lambda: finish(plain), lambda: finish(ours), SAMPLES // BATCH

    def streamed(shards: int) -> tuple[Pass, Pass, int]:
        ours = prepared(DataLoader(Stream(whole, shards), batch_size=BATCH), dispatch_batches=False)
        return lambda: finish(half), lambda: finish(ours), SAMPLES // BATCH

    return {
        "shuffled_two": sampled(rows, True),
        "nested_two": sampled(records, False),
        "iterable_two": streamed(size),
        "whole_two": streamed(1),
        "dispatched": dispatched(rows),
        "dispatched_nested": dispatched(records),
    }


def dispatched(data: Dataset) -> tuple[Pass, Pass, int]:
    """Return reading by rank 0 for all: one broadcast of as many bytes as the others get, and dispatched batches."""
    rank, size = dist.get_rank(), dist.get_world_size()
    data = Subset(data, range(DISPATCHED * BATCH * size))
    loader = DataLoader(data, batch_size=BATCH)
    ours = prepared(DataLoader(data, batch_size=BATCH), dispatch_batches=True)
    sample = default_collate([data[0]] * BATCH)
    bytes_of_batch = sum(each.nbytes for each in torch.utils._pytree.tree_leaves(sample))
    buffer = torch.zeros(bytes_of_batch * (size - 1), dtype=torch.uint8)

    def base() -> None:
        if rank == 0:
            for number, _ in enumerate(loader):
                if number % size == size - 1:
                    dist.broadcast(buffer, 0)
        else:
            for _ in range(DISPATCHED):
                dist.broadcast(buffer, 0)

    return base, lambda: finish(ours), DISPATCHED


def together(one_pass: Pass) -> Pass:
    """Return a pass that all processes begin and end together."""

    def run() -> None:
        dist.barrier()
        one_pass()
        dist.barrier()

    return run


def main() -> None:
    """Measure the rows of as many processes as there are."""
    parser = worker_parser()
    parser.add_argument("--row", help="measure this one only")
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    accelerator = Accelerator(cpu=True)
    distributed = int(os.environ.get("WORLD_SIZE", "1")) > 1
    found = {}
    for row, (base, library, batches) in (several_processes if distributed else one_process)().items():
        if args.row not in (None, row):
            continue
        if distributed:
            base, library = together(base), together(library)
        calls = 20 if row.startswith("skip") else 1
        blocks = paired_blocks(base, library, blocks=args.blocks, calls=calls, warm_up=3)
        found[row] = {name: [seconds / batches for seconds in times] for name, times in blocks.items()}
    if accelerator.is_main_process:
        write(args.result, found)
    if distributed:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
