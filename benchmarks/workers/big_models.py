"""Loading, offloading, planning and building large models: plain torch beside the library, one row per process.

Uses the public API only, so that the same file measures either library. Every block begins with a model built anew, and
its time covers the named work only. One run before the blocks is not timed: memory is watched in it.
"""

from __future__ import annotations

import functools
import gc
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from big_models_memory import Watch
from big_models_network import Llama, Shape, empty, filled
from big_models_reading import drop_cache, mapped, read_in_order, shards_of, touch
from safetensors.torch import load_file
from timing import worker_parser, write
from torch import nn

import accelerate
from accelerate.utils import OffloadedWeightsLoader

Work = Callable[[Any], object]


@dataclass(frozen=True)
class Case:
    """What one side does.

    Args:
        work: what is timed; it is called with what `prepare` returned.
        prepare: what comes before and is not timed.
    """

    work: Work
    prepare: Callable[[], Any] = lambda: None


def load_to_cpu(folder: Path, scratch: Path, touched: bool = True) -> tuple[Case, Case]:
    """A model without memory, loaded to the CPU; with `touched`, until every page of it has been read once."""
    after = touch if touched else (lambda tensors: None)

    def base(network: nn.Module) -> None:
        network.load_state_dict(mapped(folder), assign=True)
        after(network.parameters())

    def library(network: nn.Module) -> None:
        accelerate.load_checkpoint_and_dispatch(network, folder, device_map={"": "cpu"})
        after(network.parameters())

    build = functools.partial(empty, Shape())
    return Case(base, build), Case(library, build)


def load_in_place(folder: Path, scratch: Path, cold: bool = False) -> tuple[Case, Case]:
    """A model in memory, filled from a checkpoint; with `cold`, beside reading the files in order and no more."""
    network = filled(empty(Shape()))

    def base(_: None) -> None:
        for shard in shards_of(folder):
            network.load_state_dict(load_file(shard), strict=False)

    def library(_: None) -> None:
        accelerate.load_checkpoint_in_model(network, folder)

    if not cold:
        return Case(base), Case(library)
    forget = functools.partial(drop_cache, folder)
    return Case(lambda _: read_in_order(folder), forget), Case(library, forget)


def load_to_cpu_cold(folder: Path, scratch: Path) -> tuple[Case, Case]:
    """As `load_to_cpu`, with nothing in the page cache, beside reading the files in order and no more."""
    _, warm = load_to_cpu(folder, scratch)

    def prepare() -> Llama:
        drop_cache(folder)
        return empty(Shape())

    return Case(lambda _: read_in_order(folder), functools.partial(drop_cache, folder)), Case(warm.work, prepare)


#: All but 4 KB; 1.15.0 can't load a checkpoint when there is nothing for another place than the disk.
ON_DISK = {"model.embed_tokens": "disk", "model.layers": "disk", "model.norm": "cpu", "lm_head": "disk"}


def load_to_disk(folder: Path, scratch: Path) -> tuple[Case, Case]:
    """A model without memory, all of which stays on the disk; every page of its weights is read once there."""
    base, _ = load_to_cpu(folder, scratch)

    def library(network: nn.Module) -> None:
        offload = scratch / "offload"
        accelerate.load_checkpoint_and_dispatch(network, folder, device_map=ON_DISK, offload_folder=offload)
        touch(OffloadedWeightsLoader(save_folder=offload).values())

    def prepare() -> Llama:
        shutil.rmtree(scratch / "offload", ignore_errors=True)
        return empty(Shape())

    return base, Case(library, prepare)


@torch.no_grad()
def forward_from_disk(folder: Path, scratch: Path) -> tuple[Case, Case]:
    """A forward of 8 tokens with every layer on the disk."""
    tokens = torch.arange(8)[None]
    plain = empty(Shape())
    plain.load_state_dict(mapped(folder), assign=True)
    offloaded = accelerate.load_checkpoint_and_dispatch(
        empty(Shape()), folder, device_map=ON_DISK, offload_folder=scratch / "offload"
    )
    return forwards(plain, offloaded, tokens)


def forwards(plain: nn.Module, offloaded: nn.Module, inputs: torch.Tensor) -> tuple[Case, Case]:
    """The forwards of two models that are to return the same."""
    assert torch.equal(plain(inputs), offloaded(inputs))
    return Case(lambda _: plain(inputs)), Case(lambda _: offloaded(inputs))


#: 0.84 GB in fp32.
MIDDLE = Shape(layers=15, hidden=1024, inner=2816, heads=8, vocabulary=8000)


#: At this batch the plain forward of a leaf takes 25 to 40 us.
LEAF_BATCH = 48


def small_leaves() -> nn.Sequential:
    """Return 484 modules with one small weight each."""
    pairs = (each for _ in range(242) for each in (nn.Linear(128, 128, bias=False), nn.RMSNorm(128)))
    return nn.Sequential(*pairs).requires_grad_(False).eval()


def offloaded_forward(folder: Path, scratch: Path, leaves: bool, where: str) -> tuple[Case, Case]:
    """A forward of a model that was in memory and is offloaded."""

    def build() -> nn.Module:
        torch.manual_seed(0)
        return small_leaves() if leaves else filled(empty(MIDDLE, torch.float32))

    plain, offloaded = build(), build()
    if where == "disk":
        accelerate.disk_offload(offloaded, scratch / "offload", execution_device=torch.device("cpu"))
    else:
        accelerate.cpu_offload(offloaded, execution_device=torch.device("cpu"))
    return forwards(plain, offloaded, torch.randn(LEAF_BATCH, 128) if leaves else torch.arange(8)[None])


def offload_call(folder: Path, scratch: Path) -> tuple[Case, Case]:
    """`disk_offload` itself, beside writing the bytes to one file after the other."""
    content = filled(empty(MIDDLE, torch.float32)).state_dict()

    def clear() -> None:
        shutil.rmtree(scratch / "offload", ignore_errors=True)
        (scratch / "offload").mkdir()

    def base(_: None) -> None:
        for name, tensor in content.items():
            with open(scratch / "offload" / name, "wb", buffering=0) as file:
                file.write(tensor.numpy())

    def prepare() -> nn.Module:
        clear()
        network = empty(MIDDLE, torch.float32)
        network.load_state_dict(content, assign=True)
        return network

    def library(network: nn.Module) -> None:
        accelerate.disk_offload(network, scratch / "offload", execution_device=torch.device("cpu"))

    return Case(base, clear), Case(library, prepare)


def plan(folder: Path, scratch: Path, layers: int) -> tuple[Case, Case]:
    """A device map for two devices, the CPU and the disk, beside one walk that adds up sizes."""
    network = empty(Shape(layers=layers))
    total = sum(parameter.nbytes for parameter in network.parameters())
    memory = {0: total // 3, 1: total // 3, "cpu": total // 6}

    def base(_: None) -> int:
        return sum(
            tensor.numel() * tensor.element_size()
            for module in network.modules()
            for tensor in (*module._parameters.values(), *module._buffers.values())
            if tensor is not None
        )

    def library(_: None) -> object:
        return accelerate.infer_auto_device_map(network, dict(memory), no_split_module_classes=["Block"])

    return Case(base), Case(library)


def build_empty(folder: Path, scratch: Path, layers: int) -> tuple[Case, Case]:
    """A model without memory."""
    shape = Shape(layers=layers)
    empty(Shape(layers=1))  # the first tensors on meta load what torch needs for them

    def base(_: None) -> None:
        with torch.device("meta"):
            Llama(shape)

    def library(_: None) -> None:
        with accelerate.init_empty_weights():
            Llama(shape)

    return Case(base), Case(library)


#: Row -> what builds its two sides from the folder of the checkpoint and one to write to.
ROWS: dict[str, Callable[[Path, Path], tuple[Case, Case]]] = {
    "load_cpu": load_to_cpu,
    "load_cpu_call": functools.partial(load_to_cpu, touched=False),
    "load_in_place": load_in_place,
    "load_disk": load_to_disk,
    "forward_disk": forward_from_disk,
    "offload_disk": functools.partial(offloaded_forward, leaves=False, where="disk"),
    "offload_disk_leaves": functools.partial(offloaded_forward, leaves=True, where="disk"),
    "offload_cpu_leaves": functools.partial(offloaded_forward, leaves=True, where="cpu"),
    "offload_call": offload_call,
    "plan_200": functools.partial(plan, layers=200),
    "plan_1540": functools.partial(plan, layers=1540),
    "empty_16": functools.partial(build_empty, layers=16),
    "empty_64": functools.partial(build_empty, layers=64),
    "cold_in_place": functools.partial(load_in_place, cold=True),
    "cold_cpu": load_to_cpu_cold,
}


def once(case: Case, calls: int) -> float:
    """Return the seconds per call of a side; `prepare` comes before, and what it left goes after."""
    state = case.prepare()
    gc.collect()
    gc.disable()
    started = time.perf_counter()
    for _ in range(calls):
        case.work(state)
    seconds = (time.perf_counter() - started) / calls
    gc.enable()
    del state
    gc.collect()
    return seconds


def watched(case: Case, process: int) -> list[int]:
    """Run a side once, and return the peaks of its memory: its own, and pages of files."""
    state = case.prepare()
    gc.collect()
    with Watch(process) as watch:
        case.work(state)
    del state
    gc.collect()
    return [watch.own, watch.files]


@torch.no_grad()
def measure(cases: tuple[Case, Case], blocks: int, calls: int, process: int) -> dict[str, list]:
    """Return the blocks of both sides, and their peaks of memory."""
    sides = dict(zip(("base", "library"), cases, strict=True))
    found: dict[str, list] = {name: [] for name in sides}
    found |= {f"{name}_memory": [watched(case, process)] for name, case in sides.items()}
    for number in range(blocks):
        for name in sides if number % 2 == 0 else reversed(sides):
            found[name].append(once(sides[name], calls))
    return found


def main() -> None:
    """Measure one row."""
    parser = worker_parser()
    parser.add_argument("--row", required=True, choices=ROWS)
    parser.add_argument("--checkpoint", type=Path, required=True)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=args.checkpoint.parent) as scratch:
        cases = ROWS[args.row](args.checkpoint, Path(scratch))
        write(args.result, {args.row: measure(cases, args.blocks, args.calls, os.getpid())})


if __name__ == "__main__":
    main()
