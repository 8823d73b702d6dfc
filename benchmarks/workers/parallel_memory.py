"""What each process holds while it trains: one version of one way to train, by hand or through the library.

Peaks of resident memory are those of three steps, above what was there before the network was built. With `--kinds`,
also the bytes that parameters, gradients and states of the optimizer take.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Iterable

import torch
import torch.distributed as dist
from big_models_memory import Watch, taken
from parallel_cases import CASES, Training
from parallel_network import LARGE, middle
from timing import worker_parser, write

STEPS = 3


def size_of(tensors: Iterable[torch.Tensor | None]) -> int:
    """Return the bytes that tensors take on this rank; those that share memory count once."""
    local = [each.to_local() if hasattr(each, "to_local") else each for each in tensors if each is not None]
    storages = {each.untyped_storage().data_ptr(): each.untyped_storage().nbytes() for each in local}
    return sum(storages.values())


def kinds_of(training: Training) -> list[int]:
    """Return the bytes of parameters, gradients and states of the optimizer, the gradients as they are now."""
    parameters = [each for group in training.optimizer.param_groups for each in group["params"]]
    states = [value for state in training.optimizer.state.values() for value in state.values()]
    return [size_of(parameters), size_of(each.grad for each in parameters), size_of(states)]


def peaks(training: Training, before: tuple[int, ...]) -> list[int]:
    """Return the peaks of memory of its own and of pages of files in a few steps, above `before`."""
    gc.collect()
    start = taken(str(os.getpid()))
    with Watch(os.getpid()) as watch:
        for _ in range(STEPS):
            training.step()
    return [now - then + above for now, then, above in zip(start, before, (watch.own, watch.files), strict=True)]


def held(training: Training) -> list[int]:
    """Return the bytes of each kind just before gradients are let go."""
    found: list[int] = []
    forget = training.optimizer.zero_grad

    def zero_grad() -> None:
        found[:] = kinds_of(training)
        forget()

    training.optimizer.zero_grad = zero_grad
    training.step()
    return found


def main() -> None:
    """Measure one version."""
    parser = worker_parser()
    parser.add_argument("--row", choices=CASES, required=True)
    parser.add_argument("--version", choices=["base", "library"], required=True)
    parser.add_argument("--kinds", action="store_true", help="of a larger network, with what its tensors take")
    args = parser.parse_args()
    case = CASES[args.row].of(LARGE if args.kinds else middle(CASES[args.row].shape))
    if args.version == "base":
        dist.init_process_group("gloo")
    else:
        CASES[args.row].settings()  # what is imported for them is there before
    before = taken(str(os.getpid()))
    training = case.train_by_hand() if args.version == "base" else case.train_by_library()
    mine = peaks(training, before) + (held(training) if args.kinds else [])
    everybody: list[list[int]] = [[]] * dist.get_world_size()
    dist.all_gather_object(everybody, mine)
    if dist.get_rank() == 0:
        write(args.result, {args.row: {"base": [], "library": [], f"{args.version}_memory": everybody}})
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
