"""Saving and loading FSDP2 shards over gloo: raw `torch.distributed.checkpoint` beside `save_state` and `load_state`.

Uses the public API only. 1.15.0 shards on accelerators alone, so it has no part in this.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from checkpoint import WIDTH, Times, build, clock, read_once, settle, update
from timing import worker_parser, write
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

from accelerate import Accelerator, FullyShardedDataParallelPlugin


def prepare(gigabytes: float) -> tuple[Accelerator, nn.Module, Any]:
    """Return a sharded network and its AdamW, which has made a step."""
    plugin = FullyShardedDataParallelPlugin(
        fsdp_version=2,
        auto_wrap_policy="size_based_wrap",
        min_num_params=WIDTH * WIDTH,
        state_dict_type="SHARDED_STATE_DICT",
        reshard_after_forward=False,
    )
    accelerator = Accelerator(cpu=True, fsdp_plugin=plugin)
    model, optimizer = accelerator.prepare(*build(gigabytes, stepped=False))
    update(model, optimizer)
    return accelerator, model, optimizer


class Sharded:
    """One sharded state, and how it is saved and loaded by hand and by the library."""

    def __init__(self, folder: Path, gigabytes: float) -> None:
        self.folder, self.gigabytes = folder, gigabytes
        self.accelerator, self.model, self.optimizer = prepare(gigabytes)

    def save_by_hand(self) -> None:
        model, optimizer = get_state_dict(self.model, self.optimizer.optimizer)
        dcp.save({"model": model, "optimizer": optimizer}, checkpoint_id=self.folder / "base")

    def save_by_library(self) -> None:
        self.accelerator.save_state(str(self.folder / "library"))

    def load_by_hand(self) -> None:
        model, optimizer = get_state_dict(self.model, self.optimizer.optimizer)
        dcp.load({"model": model, "optimizer": optimizer}, checkpoint_id=self.folder / "base")
        set_state_dict(self.model, self.optimizer.optimizer, model_state_dict=model, optim_state_dict=optimizer)

    def load_by_library(self) -> None:
        self.accelerator.load_state(str(self.folder / "library"))

    def clean(self, name: str) -> None:
        """Begin without the files that are to be written."""
        if self.accelerator.is_main_process:
            shutil.rmtree(self.folder / name, ignore_errors=True)
            settle(self.gigabytes)

    def read_once(self, name: str) -> None:
        """Begin with the files in memory."""
        if self.accelerator.is_main_process:
            for path in (self.folder / name, *(path for path in (self.folder / name).iterdir() if path.is_dir())):
                read_once(path)
            settle(self.gigabytes)

    def alternate(
        self, base: Callable[[], None], library: Callable[[], None], blocks: int, before: Callable[[str], None]
    ) -> Times:
        """Time both in turn, on all ranks together, until the last of them is through."""
        found, pair = Times(base=[], library=[]), [("base", base), ("library", library)]
        for number in range(blocks):
            for name, work in pair if number % 2 == 0 else reversed(pair):
                before(name)
                self.accelerator.wait_for_everyone()

                def to_the_end(work: Callable[[], None] = work) -> None:
                    work()
                    self.accelerator.wait_for_everyone()

                found[name].append(clock(to_the_end))
        return found

    def save(self, blocks: int) -> Times:
        return self.alternate(self.save_by_hand, self.save_by_library, blocks, self.clean)

    def load(self, blocks: int) -> Times:
        self.load_by_hand()
        self.load_by_library()
        return self.alternate(self.load_by_hand, self.load_by_library, blocks, self.read_once)


def main() -> None:
    """Measure one row, or write what another run is to load."""
    parser = worker_parser()
    parser.add_argument("--rows", nargs="*", default=[], help="of save and load, with the name of each in the table")
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--gigabytes", type=float, default=1.0)
    args = parser.parse_args()
    sharded, found = Sharded(args.folder, args.gigabytes), {}
    for row in args.rows:
        work, _, key = row.partition("=")
        found[key or work] = getattr(sharded, work)(args.blocks)
    if not args.rows:
        sharded.save_by_hand()
        sharded.save_by_library()
    if sharded.accelerator.is_main_process:
        write(args.result, found)
    sharded.accelerator.end_training()
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
