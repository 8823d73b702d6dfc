"""One way to train in parallel: by hand and through the library, in turn in the same processes."""

from __future__ import annotations

import torch.distributed as dist
from parallel_cases import CASES
from timing import paired_blocks, worker_parser, write


def main() -> None:
    """Measure one row."""
    parser = worker_parser()
    parser.add_argument("--row", choices=CASES, required=True)
    args = parser.parse_args()
    case = CASES[args.row]
    library = case.train_by_library()  # it starts the process group
    by_hand = case.train_by_hand()
    found = paired_blocks(by_hand.step, library.step, blocks=args.blocks, calls=args.calls, warm_up=3)
    if dist.get_rank() == 0:
        write(args.result, {args.row: found})
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
