"""A training run of several processes that may die at any moment, by itself at a chosen point or by the hand of a test.

Processes are forked from a server that has imported torch already, so that starting them takes a fraction of a second.
"""

from __future__ import annotations

import faulthandler
import multiprocessing
import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from accelerate.base.ports import get_free_port

LIMIT = 120.0  #: seconds that one life of a run may take
SIZE = 2  #: processes
SAVES_EVERY = 2  #: micro-batches

_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(["torch", "accelerate.accelerator"])


@dataclass(frozen=True)
class Fault:
    """Where a rank kills itself: at the so-manieth time that it comes by a point."""

    rank: int
    point: str
    occurrence: int


@dataclass
class Life:
    """What was heard of a run until it died or ended."""

    resumed: int | None = None  #: the checkpoint that it went on from
    saved: list[int] = field(default_factory=list)  #: the checkpoints that it has reported as saved
    weights: dict[str, Any] | None = None  #: if it came to its end

    def hear(self, kind: str, value: Any) -> None:
        """Note what rank 0 has said."""
        if kind == "saved":
            self.saved.append(value)
        else:
            setattr(self, kind, value)


def live(folder: Path, *, fault: Fault | None = None, killed_after: float | None = None) -> Life:
    """Start a run and return when it has ended, or has been killed by its fault or after some seconds of training."""
    port, life, began = get_free_port(), Life(), time.monotonic()
    pipe, theirs = _context.Pipe(duplex=False)
    ranks = [
        _context.Process(target=_rank, args=(rank, port, str(folder), fault, theirs if rank == 0 else None))
        for rank in range(SIZE)
    ]
    for rank in ranks:
        rank.start()
    theirs.close()
    deadline = None
    try:
        while all(rank.exitcode is None for rank in ranks):
            assert time.monotonic() - began < LIMIT, "the run neither ends nor dies"
            if deadline is not None and time.monotonic() > deadline:
                break
            if pipe.poll(0.005):
                _listen(pipe, life)
                if deadline is None and killed_after is not None:
                    deadline = time.monotonic() + killed_after
        if life.weights is not None or all(rank.exitcode == 0 for rank in ranks):
            for rank in ranks:
                rank.join(LIMIT)
    finally:
        for rank in ranks:
            rank.kill()
            rank.join()
    while pipe.poll():
        if not _listen(pipe, life):
            break
    return life


def _listen(pipe: Any, life: Life) -> bool:
    try:
        life.hear(*pipe.recv())
    except EOFError:
        time.sleep(0.005)
        return False
    return True


def _rank(rank: int, port: int, folder: str, fault: Fault | None, pipe: Any) -> None:
    os.environ.update(
        RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(SIZE), LOCAL_WORLD_SIZE=str(SIZE),
        MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), ACCELERATE_USE_CPU="true",
    )  # fmt: skip
    import torch

    faulthandler.dump_traceback_later(LIMIT / 2)  # where a rank hangs is on the standard error of the test
    torch.set_num_threads(1)
    if fault is not None and fault.rank == rank:
        arm(fault)
    train(folder, pipe.send if pipe is not None else lambda said: None)


def train(folder: str, say: Callable[[tuple[str, Any]], None]) -> None:
    """Train to the end, from the newest checkpoint if there is one, saving now and then in either way."""
    import torch
    from torch.utils.data import DataLoader, TensorDataset

    from accelerate import Accelerator
    from accelerate.utils import ProjectConfiguration, set_seed

    config = ProjectConfiguration(project_dir=folder, automatic_checkpoint_naming=True, total_limit=2)
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2, project_config=config, scheduler_unit="update")
    set_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Dropout(0.2), torch.nn.Linear(16, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    samples = torch.randn(40, 8)
    loader = DataLoader(TensorDataset(samples, samples.sum(1, keepdim=True)), batch_size=1, shuffle=True)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    position = accelerator.resume()
    say(("resumed", int(position.folder.name.rpartition("_")[2]) if position else None))
    pending = None
    for epoch in range(position.epoch, 2):
        done = position.batches if epoch == position.epoch else 0
        for x, y in loader:
            with accelerator.accumulate(model):
                accelerator.backward((model(x) - y).square().mean())
                optimizer.step()
                optimizer.zero_grad()
            done += 1
            if done % SAVES_EVERY == 0:
                number = accelerator.save_iteration
                accelerator.save_state(blocking=number % 3 != 0)
                if pending is not None:
                    say(("saved", pending))
                pending = number if number % 3 == 0 else None
                if pending is None:
                    say(("saved", number))
    accelerator.wait_for_checkpoint()
    say(
        (
            "weights",
            {name: value.clone().numpy() for name, value in accelerator.unwrap_model(model).state_dict().items()},
        )
    )
    accelerator.end_training()


# --- points at which a process can die --------------------------------------------------------------------------------


def die() -> None:
    """End this process at once, as an out-of-memory killer or a lost machine does."""
    os.kill(os.getpid(), signal.SIGKILL)


def arm(fault: Fault) -> None:
    """Let this process die where `fault` says."""
    from accelerate.checkpointing import durable, folder, models, save

    name, around = POINTS[fault.point]
    count = 0
    original = getattr(durable, name)

    def counting(*args: Any) -> Any:
        nonlocal count
        count += 1
        return around(original, *args) if count == fault.occurrence else original(*args)

    for module in (durable, folder, models, save):
        if hasattr(module, name):
            setattr(module, name, counting)


def half_a_write(original: Any, file: Any, view: memoryview) -> None:
    """Die when half of the bytes are written."""
    original(file, view[: len(view) // 2])
    die()


def before(original: Any, *args: Any) -> None:
    """Die instead of doing it."""
    die()


def after(original: Any, *args: Any) -> None:
    """Die when it is done."""
    original(*args)
    die()


def half_a_removal(original: Any, path: Path) -> None:
    """Die when one file of a folder is removed."""
    next(each for each in path.iterdir() if each.is_file()).unlink()
    die()


#: The functions of `checkpointing.durable` that change something on the disk, and how a process dies in them.
POINTS: dict[str, tuple[str, Callable[..., None]]] = {
    "half a write": ("write_all", half_a_write),
    "before a flush": ("flush_file", before),
    "after a flush": ("flush_file", after),
    "before a folder is flushed": ("flush_folder", before),
    "before a rename": ("rename", before),
    "after a rename": ("rename", after),
    "half a removal": ("remove_folder", half_a_removal),
}
