"""Saving and loading a checkpoint: `safetensors` and `torch.save` by hand beside the library, in one process.

Uses the public API only, so that the same file measures either library. `--row write` writes what the rows about
loading read, in a process of its own, because a run that goes on is a new process.
"""

from __future__ import annotations

import mmap
import os
import shutil
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from big_models_memory import Watch
from safetensors.torch import load_file, save_file
from timing import worker_parser, write
from torch import nn

from accelerate import Accelerator

WIDTH = 2048
Times = dict[str, list[float]]


def build(gigabytes: float, stepped: bool = True) -> tuple[nn.Module, torch.optim.Optimizer]:
    """Return a network and its AdamW, which have so many gigabytes of state together, once it has made a step."""
    layers = round(gigabytes * 1e9 / (3 * 4 * WIDTH * (WIDTH + 1)))
    model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(layers)))
    optimizer = torch.optim.AdamW(model.parameters())
    if stepped:
        update(model, optimizer)
    return model, optimizer


def update(model: nn.Module, optimizer: Any) -> None:
    """Make one step with gradients that are there at once."""
    for parameter in model.parameters():
        parameter.grad = torch.full_like(parameter, 1e-3)
    optimizer.step()
    optimizer.zero_grad()


def settle(gigabytes: float) -> None:
    """Leave nothing to the block that comes next: dirty pages go to the disk, and free memory is there.

    A virtual machine may give free memory back to its host, and get it again at the price of seconds per gigabyte.
    """
    os.sync()
    size = min(int(gigabytes * 2.5e9), available() // 2)
    with mmap.mmap(-1, size) as memory:
        if hasattr(mmap, "MADV_HUGEPAGE"):
            memory.madvise(mmap.MADV_HUGEPAGE)
        for place in range(0, size, mmap.PAGESIZE):
            memory[place] = 1


def available() -> int:
    """Return how many bytes of memory are to be had."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("MemAvailable"))


def clock(work: Callable[[], object]) -> float:
    """Return the seconds that `work` takes."""
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def save_by_hand(model: nn.Module, optimizer: torch.optim.Optimizer, folder: Path) -> None:
    """Write a state as one does without a library; it may be in the page cache only."""
    folder.mkdir(parents=True)
    save_file(model.state_dict(), folder / "model.safetensors")
    torch.save(optimizer.state_dict(), folder / "optimizer.bin")


def load_by_hand(model: nn.Module, optimizer: torch.optim.Optimizer, folder: Path) -> None:
    """Load what `save_by_hand` has written."""
    model.load_state_dict(load_file(folder / "model.safetensors"))
    optimizer.load_state_dict(torch.load(folder / "optimizer.bin", weights_only=True))


def tensors_of(model: nn.Module, optimizer: torch.optim.Optimizer) -> Iterable[torch.Tensor]:
    """Yield all tensors of a state."""
    yield from model.state_dict().values()
    for state in optimizer.state_dict()["state"].values():
        yield from state.values()


class Saving:
    """Rows about saving one state, into folders that are new each time."""

    def __init__(self, folder: Path, gigabytes: float) -> None:
        self.folder, self.gigabytes = folder, gigabytes
        self.accelerator = Accelerator(cpu=True)
        self.objects = build(gigabytes)
        self.prepared = self.accelerator.prepare(*self.objects)
        self.buffers = [torch.empty_like(tensor) for tensor in tensors_of(*self.objects)]

    def clean(self) -> None:
        """Begin without files, and with memory that is there."""
        shutil.rmtree(self.folder, ignore_errors=True)
        settle(self.gigabytes)

    def by_hand(self) -> None:
        save_by_hand(*self.objects, self.folder / "base")

    def library(self, **kwargs: Any) -> None:
        self.accelerator.save_state(str(self.folder / "library"), **kwargs)

    def copy(self) -> None:
        """Copy the state into memory that is there."""
        for buffer, tensor in zip(self.buffers, tensors_of(*self.objects), strict=True):
            buffer.copy_(tensor)

    def save(self, blocks: int) -> dict[str, Any]:
        """Time blocking saves beside saves by hand; then watch the memory of one each."""
        found = alternate(self.by_hand, self.library, blocks, self.clean)
        return found | watched(self.by_hand, self.library, self.clean)

    def hold_up(self, blocks: int) -> Times:
        """Time how long a save in the background holds up its caller, beside one copy of the state."""
        self.library(blocking=False)  # the memory of the snapshot is there from the second save on

        def ready() -> None:
            self.accelerator.wait_for_checkpoint()
            self.clean()

        found = alternate(self.copy, lambda: self.library(blocking=False), blocks, ready)
        self.accelerator.wait_for_checkpoint()
        return found

    def steps(self, blocks: int) -> Times:
        """Time steps of a small network while the state is written, beside the same steps while nothing is."""
        step, found = small_step(), Times(base=[], library=[])
        for _ in range(blocks):
            self.clean()
            found["base"].append(clock(step))
            self.library(blocking=False)
            found["library"].append(clock(step))
            self.accelerator.wait_for_checkpoint()
        return found

    def blocking(self, blocks: int) -> Times:
        """Time blocking saves beside one copy of the state."""
        return alternate(self.copy, self.library, blocks, self.clean)


def small_step() -> Callable[[], None]:
    """Return a tenth of a second or two of training another network, shorter than the state takes to be written."""
    model = nn.Sequential(nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 512))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    inputs = torch.randn(64, 512)

    def run() -> None:
        for _ in range(60):
            model(inputs).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()

    run()
    return run


def load(folder: Path, gigabytes: float, library_first: bool, and_step: bool) -> dict[str, Any]:
    """Time one load by hand and one by the library, as at a restart; then watch the memory of another load each.

    When memory is watched the optimizers have a state already, so what counts is beyond what they need anyway.
    """
    accelerator = Accelerator(cpu=True)
    plain, mine = build(gigabytes, stepped=False), build(gigabytes, stepped=False)
    prepared = accelerator.prepare(*mine)

    def by_hand() -> None:
        load_by_hand(*plain, folder / "base")

    def library() -> None:
        accelerator.load_state(str(folder / "library"))

    def once(name: str) -> float:
        objects, work = {"base": (plain, by_hand), "library": (prepared, library)}[name]
        read_once(folder / name)
        settle(gigabytes)
        return clock(work) + (clock(lambda: update(*objects)) if and_step else 0)

    order = ["library", "base"] if library_first else ["base", "library"]
    found: dict[str, Any] = {name: [once(name)] for name in order}
    if and_step:
        return found
    update(*plain)
    update(*prepared)
    return found | watched(by_hand, library, lambda: settle(gigabytes))


def read_once(folder: Path) -> None:
    """Have the system hold all files of a folder in memory."""
    for path in (path for path in folder.iterdir() if path.is_file()):
        with open(path, "rb", buffering=0) as file:
            buffer = bytearray(2**20)
            while file.readinto(buffer):
                pass


def alternate(
    base: Callable[[], object], library: Callable[[], object], blocks: int, before: Callable[[], None]
) -> Times:
    """Return the seconds of both, block by block, the two of a pair next to each other."""
    found = Times(base=[], library=[])
    pair = [("base", base), ("library", library)]
    for number in range(blocks):
        for name, work in pair if number % 2 == 0 else reversed(pair):
            before()
            found[name].append(clock(work))
    return found


def watched(
    base: Callable[[], object], library: Callable[[], object], before: Callable[[], None]
) -> dict[str, list[list[int]]]:
    """Return the peaks of memory of both, in bytes above what was there before: of its own, and of files."""
    found = {}
    for name, work in (("base_memory", base), ("library_memory", library)):
        before()
        with Watch(os.getpid()) as memory:
            work()
        found[name] = [[memory.own, memory.files]]
    return found


def main() -> None:
    """Measure one row."""
    parser = worker_parser()
    parser.add_argument("--row", required=True)
    parser.add_argument("--key", help="the name of the row in the table (default: that of the row)")
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--gigabytes", type=float, default=1.0)
    parser.add_argument("--library-first", action="store_true")
    args = parser.parse_args()
    found: dict[str, Any] = {}
    if args.row == "write":
        saving = Saving(args.folder, args.gigabytes)
        saving.clean()
        saving.by_hand()
        saving.library()
    elif args.row in ("load", "resume"):
        found = load(args.folder, args.gigabytes, args.library_first, and_step=args.row == "resume")
    else:
        saving = Saving(args.folder, args.gigabytes)
        found = getattr(saving, args.row)(args.blocks)
        shutil.rmtree(args.folder, ignore_errors=True)  # some rows leave none
    write(args.result, {args.key or args.row: found} if found else {})


if __name__ == "__main__":
    main()
