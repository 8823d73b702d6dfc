"""One training step of a small network: plain torch beside the library, in one process or under DDP.

Uses the public API only, so that the same file measures either library.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable

import torch
from timing import paired_blocks, worker_parser, write
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from accelerate import Accelerator


def build() -> tuple[nn.Module, torch.optim.Optimizer]:
    """Return the network and its optimizer; the same weights each time."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
    return model, torch.optim.SGD(model.parameters(), lr=1e-3)


def plain_step(steps: int, bf16: bool, distributed: bool) -> Callable[[], None]:
    """Return a window of `steps` micro-batches and one update, as one writes it without a library."""
    model, optimizer = build()
    if distributed:
        model = DistributedDataParallel(model)
    inputs, labels = torch.randn(16, 64), torch.randint(10, (16,))
    autocast = (lambda: torch.autocast("cpu", torch.bfloat16)) if bf16 else contextlib.nullcontext
    no_sync = model.no_sync if distributed else contextlib.nullcontext

    def micro_batch() -> None:
        with autocast():
            outputs = model(inputs)
        loss = nn.functional.cross_entropy(outputs.float() if bf16 else outputs, labels)
        (loss / steps if steps > 1 else loss).backward()

    def window() -> None:
        for _ in range(steps - 1):
            with no_sync():
                micro_batch()
        micro_batch()
        optimizer.step()
        optimizer.zero_grad()

    return window


def library_step(accelerator: Accelerator, steps: int, accumulate: bool) -> Callable[[], None]:
    """Return the same window with the library."""
    model, optimizer = accelerator.prepare(*build())
    inputs, labels = torch.randn(16, 64), torch.randint(10, (16,))

    def update() -> None:
        loss = nn.functional.cross_entropy(model(inputs), labels)
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()

    def window() -> None:
        for _ in range(steps):
            with accelerator.accumulate(model):
                update()

    return window if accumulate else update


def main() -> None:
    """Measure one row."""
    parser = worker_parser()
    parser.add_argument("--row", required=True)
    parser.add_argument("--steps", type=int, default=1)
    parser.add_argument("--accumulate", action="store_true")
    parser.add_argument("--bf16", action="store_true")
    args = parser.parse_args()
    distributed = int(os.environ.get("WORLD_SIZE", "1")) > 1
    accelerator = Accelerator(
        cpu=True, mixed_precision="bf16" if args.bf16 else "no", gradient_accumulation_steps=args.steps
    )
    library = library_step(accelerator, args.steps, args.accumulate)
    base = plain_step(args.steps, args.bf16, distributed)
    found = paired_blocks(base, library, blocks=args.blocks, calls=args.calls // args.steps)
    if accelerator.is_main_process:
        write(args.result, {args.row: {name: [t / args.steps for t in times] for name, times in found.items()}})
    if distributed:
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
