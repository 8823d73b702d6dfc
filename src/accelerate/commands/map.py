"""`accelerate map`: see where the parts of a model would go, and what moves in every forward."""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from accelerate.commands.utils import CustomArgumentParser, run_command

DESCRIPTION = "Show which part of a model goes to which device, what is left over, and what moves in every forward."


def map_command_parser(subparsers: Any = None) -> argparse.ArgumentParser:
    """Return the parser of `accelerate map`, added to `subparsers` if they are given."""
    if subparsers is not None:
        parser = subparsers.add_parser("map", help=DESCRIPTION, description=DESCRIPTION)
        parser.set_defaults(func=map_command)
    else:
        parser = CustomArgumentParser("accelerate map", description=DESCRIPTION)
    parser.add_argument(
        "model", help="A folder with a checkpoint, a config.json, a safetensors file or index, or a hub id."
    )
    parser.add_argument("--max_memory", help="What devices may hold, as 0=10GiB,cpu=24GiB; by default what is free.")
    parser.add_argument("--dtype", help="What the weights will be converted to, such as bfloat16.")
    parser.add_argument("--balanced", action="store_true", help="Spread the model evenly over the accelerators.")
    parser.add_argument("--no_split", nargs="+", help="Names of classes that are not to be split.")
    parser.add_argument("--disk_bandwidth", default="2GB", help="What the disk is read at, per second.")
    parser.add_argument("--link_bandwidth", default="20GB", help="What goes to an accelerator per second.")
    parser.add_argument("--output", help="Draw the map into this file: .svg, .png or .pdf.")
    parser.add_argument("--explain", action="store_true", help="Print every decision of the planner.")
    parser.add_argument("--json", action="store_true", help="Print the figures as JSON, for programs.")
    parser.add_argument("--trust_remote_code", action="store_true", help="Let code that comes with the model run.")
    return parser


def map_command(args: argparse.Namespace) -> None:
    """Print the map, and draw it if asked."""
    from accelerate.big_modeling.memory_map import map_memory, parse_max_memory
    from accelerate.big_modeling.sources import open_source

    source = open_source(args.model, trust_remote_code=args.trust_remote_code)
    drawn = map_memory(
        source.model,
        None if args.max_memory is None else parse_max_memory(args.max_memory),
        title=source.title,
        no_split_module_classes=args.no_split or source.no_split,
        dtype=args.dtype,
        balanced=args.balanced,
        disk_bandwidth=args.disk_bandwidth,
        link_bandwidth=args.link_bandwidth,
    )
    if args.output is not None:
        drawn.save(args.output)
    if args.json:
        print(json.dumps(drawn.as_dict() | _decisions(args, drawn), indent=2))
        return
    if args.explain:
        print(*drawn.plan.decisions, "", sep="\n")
    drawn.print()
    if args.output is not None:
        print(f"\nDrawn into {args.output}.")


def _decisions(args: argparse.Namespace, drawn: Any) -> dict[str, list[str]]:
    return {"decisions": [str(each) for each in drawn.plan.decisions]} if args.explain else {}


def main() -> None:
    """Run `accelerate map` as a program of its own."""
    run_command(map_command, map_command_parser().parse_args(sys.argv[1:]))


if __name__ == "__main__":
    main()
