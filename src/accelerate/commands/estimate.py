"""`accelerate estimate-memory`: what a model takes to hold, to run and to train, in each number format.

Local checkpoints and configurations need no network, and checkpoints no code of the model.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from typing import Any

from accelerate.commands import estimate_parallel
from accelerate.commands.utils import CustomArgumentParser, run_command

#: Columns inside a box on a terminal of 80.
ROOM = 78
DESCRIPTION = "Estimate the memory that a model takes to hold, to run and to train, in each number format."

#: Formats that are shown without a choice, and all that can be chosen.
SHOWN = ("float32", "float16", "int8", "int4")
CHOICES = ("float32", "float16", "bfloat16", "fp8", "int8", "int4", "all")
LIBRARIES = ("timm", "transformers")
LARGEST, TOTAL, TRAINING = "Largest", "Weights", "Training"
NOTE = "Largest: of what can't be split. Training: with Adam, activations (kept) on top."

#: What a library's models begin with on the hub.
TIMM = "timm/"


def estimate_command_parser(subparsers: Any = None) -> argparse.ArgumentParser:
    """Return the parser of `accelerate estimate-memory`, added to `subparsers` if they are given."""
    if subparsers is not None:
        parser = subparsers.add_parser("estimate-memory", help=DESCRIPTION, description=DESCRIPTION)
        parser.set_defaults(func=estimate_command)
    else:
        parser = CustomArgumentParser("accelerate estimate-memory", description=DESCRIPTION)
    parser.add_argument(
        "model_name",
        help="A folder with a checkpoint, a config.json, a safetensors file or index, a hub id, or a shape: llama-7b, "
        "llama-70b, llama-405b.",
    )
    parser.add_argument("--library_name", choices=LIBRARIES, help="The library that builds a model of the hub.")
    parser.add_argument(
        "--dtypes",
        nargs="+",
        default=list(SHOWN),
        choices=CHOICES,
        metavar="DTYPE",
        help=f"The formats to show, of: {', '.join(CHOICES)}.",
    )
    parser.add_argument("--trust_remote_code", action="store_true", help="Let code that comes with the model run.")
    parser.add_argument("--batch_size", type=int, default=1, help="How many sequences there are at a time.")
    parser.add_argument(
        "--sequence_length",
        type=int,
        default=0,
        help="How many tokens a sequence has; shows activations, and keys and values.",
    )
    parser.add_argument("--max_memory", help="Also divide each by a plan for these devices, as 0=10GiB,cpu=24GiB.")
    parser.add_argument("--json", action="store_true", help="Print bytes as JSON, for programs.")
    estimate_parallel.add_arguments(parser)
    return parser


def estimate_command(args: argparse.Namespace) -> None:
    """Print the table, and what each device of a plan takes if one is asked for; or a plan for a mesh."""
    if estimate_parallel.wants_mesh(args, SHOWN):
        _check_tokens(args.batch_size, args.sequence_length or 1)
        estimate_parallel.estimate_mesh(args)
        return
    source, figures = _figures(args)
    plans = _plans(args, source, figures)
    if args.json:
        print(json.dumps(_as_json(args, figures, plans), indent=2))
        return
    print(create_ascii_table(_headers(figures), _rows(figures), f"Memory for {args.model_name}"))
    print(NOTE)
    if any(each.activations is not None for each in figures):
        print(f"Kept, forward, KV cache and inference: for {args.batch_size} x {args.sequence_length} tokens.")
    elif args.sequence_length:
        print("Activations are not known: no config.json says what kind of transformer this is.")
    for dtype, shares in plans.items():
        rows = [[str(each.device), *map(_readable, _columns(each))] for each in shares]
        print(create_ascii_table(["Device", *_share_headers(shares)], rows, f"Planned in {dtype}"))


def gather_data(args: argparse.Namespace) -> list[list[Any]]:
    """Return a row for each format: its name, the bytes of the largest layer, of all, and of training with Adam.

    Args:
        args: what `estimate_command_parser` returns; `model_name`, `dtypes` and `trust_remote_code` will do.
    """
    from accelerate.big_modeling.estimates import FORMATS
    from accelerate.big_modeling.units import dtype_byte_size

    _, figures = _figures(args)
    rows: list[list[Any]] = []
    for each in figures:
        in_full = each.weights * 4 / dtype_byte_size(FORMATS[each.dtype])
        rows.append([each.dtype, each.largest_layer, each.weights, estimate_training_usage(in_full, each.dtype)])
    return rows


def estimate_training_usage(bytes: float, mixed_precision: str, msamp_config: str | None = None) -> dict[str, float]:
    """Return the bytes that are added at each stage of training with Adam; -1 for formats that aren't trained in.

    The stages are those that code written for 1.15 reads; what training takes in all is in the table of the command.

    Args:
        bytes: those of the weights in fp32.
        mixed_precision: the format that is computed in.
        msamp_config: an optimization level of MS-AMP, which is refused.

    Raises:
        ValueError: `msamp_config` is given.
    """
    from accelerate.base.messages import message

    if msamp_config is not None:
        raise ValueError(
            message(
                given=f"msamp_config={msamp_config!r}",
                why="what MS-AMP saves is not estimated",
                allowed="None",
                do="leave it out; the figures without it are an upper bound",
            )
        )
    if mixed_precision == "float32":
        return {"model": bytes, "gradients": bytes, "optimizer": bytes * 2, "step": bytes * 4}
    if mixed_precision in ("float16", "bfloat16"):
        return {"model": bytes, "gradients": bytes * 1.5, "optimizer": bytes * 2, "step": bytes * 2}
    return dict.fromkeys(("model", "gradients", "optimizer", "step"), -1)


def _figures(args: argparse.Namespace) -> tuple[Any, list[Any]]:
    """Return the model, and an estimate for each format."""
    from accelerate.big_modeling.estimates import FORMATS, estimate
    from accelerate.big_modeling.sources import open_source

    batch, length = getattr(args, "batch_size", 1), getattr(args, "sequence_length", 0)
    _check_tokens(batch, length)
    library = getattr(args, "library_name", None)
    source = open_source(args.model_name, library=library, trust_remote_code=args.trust_remote_code)
    dtypes = list(FORMATS) if "all" in args.dtypes else args.dtypes
    figures = estimate(
        source.model, source.no_split, source.config, dtypes=dtypes, batch_size=batch, sequence_length=length
    )
    return source, figures


def _check_tokens(batch_size: int, sequence_length: int) -> None:
    from accelerate.base.messages import message

    if batch_size < 1 or sequence_length < 0 or (batch_size > 1 and not sequence_length):
        raise ValueError(
            message(
                given=f"batch_size={batch_size} and sequence_length={sequence_length}",
                why="activations follow from the number of tokens, which is their product",
                allowed="a batch size of 1 or more, with a sequence length of 1 or more; 0 leaves both out",
                do="pass --sequence_length as well",
            )
        )


def _plans(args: argparse.Namespace, source: Any, figures: Sequence[Any]) -> dict[str, list[Any]]:
    """Return what each device takes, for each format; nothing without a budget."""
    from accelerate.big_modeling.estimates import FORMATS, shares
    from accelerate.big_modeling.memory_map import map_memory, parse_max_memory

    if not getattr(args, "max_memory", None):
        return {}
    budget = parse_max_memory(args.max_memory)
    model = source.model.float()  # on meta, so that each format is what weights are converted to
    found = {}
    for each in figures:
        dtype = FORMATS[each.dtype]
        found[each.dtype] = shares(
            map_memory(model, budget, no_split_module_classes=source.no_split, dtype=dtype), each
        )
    return found


def _headers(figures: Sequence[Any]) -> list[str]:
    headers = ["dtype", LARGEST, TOTAL, TRAINING]
    if any(each.activations is not None for each in figures):
        headers += ["Kept", "Forward", "KV cache", "Inference"]
    return headers


def _rows(figures: Sequence[Any]) -> list[list[str]]:
    rows = []
    for each in figures:
        columns = [each.largest_layer, each.weights, each.training]
        if each.activations is not None:
            columns += [each.kept, each.activations, each.kv_cache, each.inference]
        rows.append([each.dtype, *map(_readable, columns)])
    return rows


def _share_headers(shares: Sequence[Any]) -> list[str]:
    known = any(each.kv_cache is not None for each in shares)
    return [TOTAL, *(["KV cache", "Forward"] if known else []), TRAINING]


def _columns(share: Any) -> list[float | None]:
    known = [] if share.kv_cache is None else [share.kv_cache, share.activations]
    return [share.weights, *known, share.training]


def _as_json(args: argparse.Namespace, figures: Sequence[Any], plans: dict[str, list[Any]]) -> dict[str, Any]:
    from dataclasses import asdict

    found = {
        "model": args.model_name,
        "batch_size": args.batch_size,
        "sequence_length": args.sequence_length,
        "estimates": [each.as_dict() for each in figures],
    }
    return found | (
        {"plans": {name: [asdict(each) for each in shares] for name, shares in plans.items()}} if plans else {}
    )


def _readable(size: float | None) -> str:
    from accelerate.big_modeling.units import readable

    return "-" if size is None else readable(size)


def create_ascii_table(headers: Sequence[str], rows: Sequence[Sequence[Any]], title: str) -> str:
    """Return a table in a box.

    Args:
        headers: the names of the columns.
        rows: their values.
        title: a line above them; of one that doesn't fit into 80 columns, its beginning is left out.
    """
    title = title if len(title) <= ROOM else f"…{title[1 - ROOM :]}"
    table = [list(map(str, headers)), *(list(map(str, row)) for row in rows)]
    widths = [max(len(row[column]) for row in table) for column in range(len(headers))]
    widths[-1] += max(0, len(title) - sum(widths) - len(widths) + 1)
    inside = sum(widths) + len(widths) - 1

    def rule(left: str, between: str, right: str) -> str:
        return left + between.join("─" * width for width in widths) + right

    lines = [f"┌{'─' * inside}┐", f"│{title:^{inside}}│", rule("├", "┬", "┤")]
    for index, row in enumerate(table):
        if index == 1:
            lines.append(rule("├", "┼", "┤"))
        lines.append("│" + "│".join(f"{value:^{width}}" for value, width in zip(row, widths, strict=True)) + "│")
    return "\n".join([*lines, rule("└", "┴", "┘")])


def create_empty_model(
    model_name: str, library_name: str | None, trust_remote_code: bool = False, access_token: str | None = None
) -> Any:
    """Return a model on meta.

    Args:
        model_name: see `accelerate estimate-memory`.
        library_name: "timm" or "transformers"; by default what the model says.
        trust_remote_code: let code that comes with the model run.
        access_token: for private models on the hub.
    """
    from accelerate.big_modeling.sources import open_source

    return open_source(model_name, library=library_name, trust_remote_code=trust_remote_code, token=access_token).model


def verify_on_hub(repo: str, token: str | None = None) -> Any:
    """Return what the hub knows of a model; "gated" or "repo" if it may not be seen or isn't there."""
    from huggingface_hub import model_info
    from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError

    try:
        return model_info(repo, token=token)
    except GatedRepoError:
        return "gated"
    except RepositoryNotFoundError:
        return "repo"


def check_has_model(error: OSError) -> str:
    """Return which library a failure to load a model speaks of: "timm", "transformers" or "unknown"."""
    text = str(error).lower()
    if "timm" in text:
        return "timm"
    return "transformers" if "does not appear to have a file named" in text else "unknown"


def add_timm_hub_prefix(model_name: str) -> str:
    """Return the id on the hub of a model of timm."""
    return model_name if "/" in model_name else f"{TIMM}{model_name}"


def main() -> None:
    """Run `accelerate estimate-memory` as a program of its own."""
    run_command(estimate_command, estimate_command_parser().parse_args(sys.argv[1:]))


if __name__ == "__main__":
    main()
