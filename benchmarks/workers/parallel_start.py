"""How a sharded training begins: a network is built, sharded, and filled from a checkpoint that one process reads.

With `--version`, the peak of resident memory of one version, of a network that is made rather than read.
"""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
import torch.distributed as dist
from big_models_memory import Watch
from big_models_network import Llama, Shape
from big_models_reading import mapped
from timing import worker_parser, write
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict
from torch.distributed.fsdp import fully_shard

from accelerate import Accelerator, FullyShardedDataParallelPlugin

#: What memory is watched with: 0.27 billion parameters, 1.1 GB in fp32.
MADE = Shape(layers=5, vocabulary=3200)

State = Mapping[str, torch.Tensor]


def bare(shape: Shape, dtype: torch.dtype) -> Llama:
    """Return a network without memory."""
    with torch.device("meta"):
        return Llama(shape).to(dtype)


def by_hand(shape: Shape, dtype: torch.dtype, read: Callable[[], State]) -> nn.Module:
    """Shard an empty network, and hand out what the first process has read."""
    state = read() if dist.get_rank() == 0 else {}
    model = bare(shape, dtype)
    for block in model.model.layers:
        fully_shard(block)
    fully_shard(model)
    model.to_empty(device="cpu")
    options = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
    set_model_state_dict(model, dict(state), options=options)
    return model


class Library:
    """The library: `prepare` shards a network that the first process has, or with `everywhere` each of them."""

    def __init__(self, everywhere: bool = False) -> None:
        plugin = FullyShardedDataParallelPlugin(
            fsdp_version=2,
            auto_wrap_policy="TRANSFORMER_BASED_WRAP",
            transformer_cls_names_to_wrap=["Block"],
            cpu_ram_efficient_loading=not everywhere,
        )
        self.everywhere = everywhere
        self.accelerator = Accelerator(cpu=True, fsdp_plugin=plugin)

    def begin(self, shape: Shape, dtype: torch.dtype, read: Callable[[], State]) -> nn.Module:
        model = bare(shape, dtype)
        if self.everywhere or self.accelerator.is_main_process:
            model.load_state_dict(read(), assign=True)
        return self.accelerator.prepare(model)


def made(shape: Shape, dtype: torch.dtype) -> State:
    """Return the weights of a network, in memory of this process."""
    return {name: torch.full(each.shape, 0.01, dtype=dtype) for name, each in bare(shape, dtype).state_dict().items()}


def clocked(begin: Callable[[], nn.Module], let_go: Callable[[], object]) -> float:
    """Return the seconds until all processes have their shards; these go after that."""
    gc.collect()
    dist.barrier()
    started = time.perf_counter()
    model = begin()
    dist.barrier()
    seconds = time.perf_counter() - started
    del model
    let_go()
    return seconds


def alternate(folder: Path, blocks: int) -> dict[str, list[float]]:
    """Time both versions in turn."""
    given = Shape(), torch.bfloat16, lambda: mapped(folder)
    library = Library()
    pair = [("base", lambda: by_hand(*given)), ("library", lambda: library.begin(*given))]
    found: dict[str, list[float]] = {"base": [], "library": []}
    for _, begin in pair:  # the first time brings in the files, and what is imported late
        clocked(begin, library.accelerator.free_memory)
    for number in range(blocks):
        for name, begin in pair if number % 2 == 0 else reversed(pair):
            found[name].append(clocked(begin, library.accelerator.free_memory))
    return found


def peaks(version: str) -> dict[str, list]:
    """Return the peaks of memory of all processes, of its own and of pages of files."""
    given = MADE, torch.float32, lambda: made(MADE, torch.float32)
    begin = by_hand if version == "base" else Library(everywhere=version == "everywhere").begin
    tiny = Shape(1, 64, 64, 1, 64)
    begin(tiny, torch.float32, lambda: made(tiny, torch.float32))  # what is imported late is there before
    gc.collect()
    with Watch(os.getpid()) as watch:
        model = begin(*given)
    del model
    everybody: list[list[int]] = [[]] * dist.get_world_size()
    dist.all_gather_object(everybody, [watch.own, watch.files])
    side = "base" if version == "base" else "library"
    return {"base": [], "library": [], f"{side}_memory": everybody}


def main() -> None:
    """Measure one row."""
    parser = worker_parser()
    parser.add_argument("--checkpoint", type=Path, required=True)
    parser.add_argument("--version", choices=["base", "library", "everywhere"])
    args = parser.parse_args()
    dist.init_process_group("gloo")
    if args.version is None:
        found = {"start": alternate(args.checkpoint, args.blocks)}
    else:
        found = {f"begin {args.version}": peaks(args.version)}
    if dist.get_rank() == 0:
        write(args.result, found)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
