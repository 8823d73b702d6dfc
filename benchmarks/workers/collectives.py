"""Collectives in gloo processes: `torch.distributed` itself beside the library's functions on nested data.

Uses the public API only, so that the same file measures either library.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.distributed as dist
from timing import paired_blocks, worker_parser, write

from accelerate import Accelerator
from accelerate.utils import broadcast, gather, pad_across_processes, reduce

# its first name warns since torch 2.13
all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor


def raw_gather(tensor: torch.Tensor) -> Callable[[], object]:
    """Return an all-gather into a new tensor."""

    def run() -> torch.Tensor:
        gathered = tensor.new_empty(dist.get_world_size() * tensor.shape[0], *tensor.shape[1:])
        all_gather(gathered, tensor)
        return gathered

    return run


def raw_reduce(tensor: torch.Tensor) -> Callable[[], object]:
    """Return an all-reduce of a copy."""

    def run() -> torch.Tensor:
        copy = tensor.clone()
        dist.all_reduce(copy)
        return copy

    return run


def raw_pad(data: dict[str, torch.Tensor]) -> Callable[[], object]:
    """Return one gather of the sizes in dim 1, and the padding."""

    def run() -> dict[str, torch.Tensor]:
        own = torch.tensor([tensor.shape[1] for tensor in data.values()])
        sizes = own.new_empty(dist.get_world_size() * len(data))
        all_gather(sizes, own)
        padded = {}
        for (key, tensor), size in zip(data.items(), sizes.view(-1, len(data)).amax(0).tolist(), strict=True):
            padded[key] = tensor.new_zeros(tensor.shape[0], size)
            padded[key][:, : tensor.shape[1]] = tensor
        return padded

    return run


def rows() -> dict[str, tuple[Callable[[], object], Callable[[], object]]]:
    """Return the base and the library's function of each row."""
    one = torch.randn(64, 64)
    small = {f"field_{index}": torch.randn(8, 16 + index) for index in range(10)}
    dtypes = [torch.float32, torch.int64, torch.bool]
    mixed = {key: tensor.abs().to(dtypes[index % 3]) for index, (key, tensor) in enumerate(small.items())}
    ragged = {key: torch.randn(8, tensor.shape[1] + dist.get_rank()) for key, tensor in small.items()}
    flat = torch.cat([tensor.flatten() for tensor in small.values()])
    mixed_bytes = torch.zeros(sum(tensor.nbytes for tensor in mixed.values()), dtype=torch.uint8)
    return {
        "gather_one": (raw_gather(one), lambda: gather(one)),
        "reduce_one": (raw_reduce(one), lambda: reduce(one, "sum")),
        "broadcast_one": (lambda: dist.broadcast(one, 0), lambda: broadcast(one)),
        "gather_dict": (raw_gather(flat), lambda: gather(small)),
        "broadcast_dict": (lambda: dist.broadcast(flat, 0), lambda: broadcast(small)),
        "gather_mixed": (raw_gather(mixed_bytes), lambda: gather(mixed)),
        "reduce_dict": (raw_reduce(flat), lambda: reduce(small, "sum")),
        "pad_dict": (raw_pad(ragged), lambda: pad_across_processes(ragged, dim=1)),
    }


def main() -> None:
    """Measure all rows."""
    args = worker_parser().parse_args()
    accelerator = Accelerator(cpu=True)
    found = {
        row: paired_blocks(base, library, blocks=args.blocks, calls=args.calls)
        for row, (base, library) in rows().items()
    }
    if accelerator.is_main_process:
        write(args.result, found)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
