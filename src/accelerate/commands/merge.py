"""`accelerate merge-weights`: from the shards that FSDP saved to one file of weights."""

from __future__ import annotations

import argparse
from typing import Any

from accelerate.commands.utils import CustomArgumentParser, run_command

DESCRIPTION = "Merge the shards of a model that was saved with SHARDED_STATE_DICT into one file of weights."


def merge_command_parser(subparsers: Any = None) -> argparse.ArgumentParser:
    """Return the parser of `accelerate merge-weights`, added to `subparsers` if given."""
    if subparsers is not None:
        parser = subparsers.add_parser("merge-weights", help=DESCRIPTION, description=DESCRIPTION)
        parser.set_defaults(func=merge_command)
    else:
        parser = CustomArgumentParser("accelerate merge-weights", description=DESCRIPTION)
    parser.add_argument("checkpoint_directory", help="The folder of shards, such as checkpoint_0/pytorch_model_fsdp_0.")
    parser.add_argument("output_path", help="The folder that the file goes into; it is made if it isn't there.")
    parser.add_argument(
        "--unsafe_serialization",
        action="store_true",
        help="Write pytorch_model.bin with torch.save instead of model.safetensors; needs the whole model in memory.",
    )
    parser.add_argument(
        "--remove_checkpoint_dir", action="store_true", help="Remove the folder of shards once the file is written."
    )
    return parser


def merge_command(args: argparse.Namespace) -> None:
    """Merge what `args` name, and say where the weights are.

    Raises:
        ValueError: there are no shards in the folder.
    """
    from accelerate.checkpointing.public import merge_fsdp_weights

    merge_fsdp_weights(
        args.checkpoint_directory,
        args.output_path,
        safe_serialization=not args.unsafe_serialization,
        remove_checkpoint_dir=args.remove_checkpoint_dir,
    )
    print(f"The weights of {args.checkpoint_directory} are in {args.output_path}.")


def main() -> None:
    """Run `accelerate merge-weights` as a program of its own."""
    run_command(merge_command, merge_command_parser().parse_args())


if __name__ == "__main__":
    main()
