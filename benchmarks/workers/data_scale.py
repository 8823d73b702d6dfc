"""Reading a shuffled epoch with several processes and workers: by hand with a `DistributedSampler`, and prepared.

A sample is drawn from its index and normalised, which takes some 50 us, so that workers have something to do. Uses the
public API only, so that the same file measures either library.
"""

from __future__ import annotations

import os
import warnings

import torch
import torch.distributed as dist
from timing import paired_blocks, worker_parser, write
from torch.utils.data import DataLoader, Dataset, DistributedSampler

from accelerate import Accelerator

BATCH = 32
SAMPLES = 2048


class Pictures(Dataset):
    """Samples of 3 x 32 x 32 that take some time to make."""

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> torch.Tensor:
        picture = torch.arange(index, index + 3072, dtype=torch.float32).view(3, 32, 32)
        return (picture - picture.mean((1, 2), keepdim=True)) / picture.std((1, 2), keepdim=True)


def finish(loader: DataLoader) -> None:
    """Read to the end; all processes begin and end together."""
    if dist.is_initialized():
        dist.barrier()
    for _ in loader:
        pass
    if dist.is_initialized():
        dist.barrier()


def main() -> None:
    """Measure every number of workers with as many processes as there are; times are per sample of all processes."""
    parser = worker_parser()
    parser.add_argument("--workers", type=int, nargs="+", required=True)
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    accelerator = Accelerator(cpu=True)
    size, rank = int(os.environ.get("WORLD_SIZE", "1")), int(os.environ.get("RANK", "0"))
    data, found = Pictures(), {}
    for workers in args.workers:
        settings = {"batch_size": BATCH, "num_workers": workers, "persistent_workers": workers > 0}
        plain = DataLoader(data, sampler=DistributedSampler(data, size, rank), **settings)
        prepared = accelerator.prepare(DataLoader(data, shuffle=True, **settings))
        blocks = paired_blocks(
            lambda plain=plain: finish(plain),
            lambda prepared=prepared: finish(prepared),
            blocks=args.blocks,
            calls=1,
            warm_up=1,
        )
        found[f"scale_{size}_{workers}"] = {name: [each / SAMPLES for each in times] for name, times in blocks.items()}
    if accelerator.is_main_process:
        write(args.result, found)
    if size > 1:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
