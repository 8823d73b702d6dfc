"""What `accelerate estimate-memory` prints of meshes: what training takes on each rank, and what ranks send."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

#: How long sequences are where nothing says it.
LENGTH = 4096
#: What is trained with where nothing says it.
DEFAULTS: dict[str, Any] = {"precision": "bf16", "optimizer": "adamw", "reshard_after_forward": "true"}
#: Arguments that have an effect with a mesh alone, and those that have none with it.
WITH_MESH = (
    *DEFAULTS,
    "activation_checkpointing",
    "num_microbatches",
    "schedule",
    "cp_comm_strategy",
    "tp_plan",
    "simulate",
)
HEADERS = ("Weights", "Grads", "Optim.", "Activ.", "Peak")
SENT = {
    "all_gather": "Gather",
    "reduce_scatter": "Scatter",
    "all_reduce": "Reduce",
    "send": "Send",
    "all_to_all": "Exch.",
}
UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of planning for a mesh."""
    group = parser.add_argument_group("Planning for many processes")
    group.add_argument(
        "--parallelism",
        nargs="+",
        action="extend",
        metavar="AXES",
        help="Plan training on these meshes, as dp_shard=64,tp=8; axes: pp, dp_replicate, dp_shard, cp, sp, tp.",
    )
    group.add_argument(
        "--num_processes", type=int, help="How many processes there are; without --parallelism, show the usual meshes."
    )
    group.add_argument("--precision", help="fp32, bf16 (mixed precision, the default) or pure_bf16.")
    group.add_argument("--optimizer", help="adamw (the default), adam, sgd, sgd_momentum, rmsprop or adagrad.")
    group.add_argument(
        "--reshard_after_forward",
        choices=("true", "false"),
        help="Free gathered parameters after the forward pass (true, the default), or keep them.",
    )
    group.add_argument(
        "--activation_checkpointing", action="store_true", help="Compute activations again in the backward pass."
    )
    group.add_argument(
        "--num_microbatches",
        type=int,
        help="Micro-batches of an update: steps of accumulation, or those of a pipeline (by default its stages).",
    )
    group.add_argument("--schedule", help="In which order a pipeline works on them: 1f1b (the default) or gpipe.")
    group.add_argument(
        "--cp_comm_strategy", help="How context parallel exchanges: allgather (the default), alltoall, or cpu."
    )
    group.add_argument(
        "--tp_plan",
        help="How layers are divided, as layers.*.up=colwise,layers.*.down=rowwise; else as the model says.",
    )
    group.add_argument(
        "--simulate", action="store_true", help="Also run an update in a simulated process group, and compare."
    )


def wants_mesh(args: argparse.Namespace, formats: Sequence[str]) -> bool:
    """Whether a mesh is asked for.

    Args:
        args: what was parsed.
        formats: the default of `--dtypes`.

    Raises:
        ValueError: an argument that has no effect besides what else is asked for.
    """
    wanted = bool(getattr(args, "parallelism", None) or getattr(args, "num_processes", None) is not None)
    idle = [] if wanted else [f"--{name}" for name in WITH_MESH if getattr(args, name, None)]
    if wanted and list(args.dtypes) != list(formats):
        idle.append("--dtypes")
    if wanted and args.max_memory:
        idle.append("--max_memory")
    if idle:
        raise ValueError(_without_effect(idle, wanted))
    return wanted


def _without_effect(idle: Iterable[str], wanted: bool) -> str:
    from accelerate.base.messages import message

    given = f"{' and '.join(idle)} {'with' if wanted else 'without'} a mesh"
    if wanted:
        why, do = "a plan for a mesh is made for one precision, and for ranks that are alike", "pass --precision"
    else:
        why, do = "these say how a model is trained on several processes", "add --parallelism dp_shard=8"
    allowed = "--parallelism or --num_processes with what belongs to them, or neither"
    return message(given=given, why=why, allowed=allowed, do=do)


def estimate_mesh(args: argparse.Namespace) -> None:
    """Print what training takes on each of the meshes that are asked for."""
    from accelerate.strategies.planning.meshes import check_size, parse_mesh
    from accelerate.strategies.planning.plan import plan_meshes

    source = _source(args)
    subject, training = _subject(args, source), _training(args, source)
    meshes = [parse_mesh(text) for text in args.parallelism or ()]
    if args.num_processes is not None:
        _check_processes(args.num_processes)
        for mesh in meshes:
            check_size(mesh, args.num_processes)
    found = plan_meshes(subject, args.num_processes or 0, training, meshes or None)
    simulated = [_simulated(subject, each) for each in found] if args.simulate else []
    if args.json:
        print(json.dumps(_as_json(args, training, found, simulated), indent=2))
        return
    _show(args, training, found, simulated)


def _check_processes(count: int) -> None:
    from accelerate.base.messages import message

    if count < 1:
        raise ValueError(
            message(
                given=f"--num_processes {count}",
                why="a mesh has at least one rank",
                allowed="whole numbers from 1 on",
                do="pass how many processes the run has",
            )
        )


def _source(args: argparse.Namespace) -> Any:
    """Return the model; from its configuration rather than its files, where both are there: layers say more."""
    from accelerate.base.packages import is_transformers_available
    from accelerate.big_modeling.sources import CONFIG, open_source

    config = Path(args.model_name) / CONFIG
    name = str(config) if config.is_file() and is_transformers_available() else args.model_name
    return open_source(name, library=args.library_name, trust_remote_code=args.trust_remote_code)


def _subject(args: argparse.Namespace, source: Any) -> Any:
    from accelerate.config.parallelism_settings import Plan as TensorPlan
    from accelerate.strategies.planning.facts import Subject

    return Subject.of(source, TensorPlan().parse(args.tp_plan) if args.tp_plan else None)


def _training(args: argparse.Namespace, source: Any) -> Any:
    from accelerate.strategies.planning.training import Training

    given = {name: getattr(args, name) or default for name, default in DEFAULTS.items()}
    others = {name: getattr(args, name) for name in ("schedule", "cp_comm_strategy") if getattr(args, name)}
    longest = source.config.get("max_position_embeddings") or source.config.get("n_positions") or LENGTH
    return Training(
        precision=given["precision"],
        optimizer=given["optimizer"],
        reshard_after_forward=given["reshard_after_forward"] == "true",
        activation_checkpointing=args.activation_checkpointing,
        batch_size=args.batch_size,
        sequence_length=args.sequence_length or min(LENGTH, longest),
        num_microbatches=args.num_microbatches,
        **others,
    )


def _simulated(subject: Any, plan: Any) -> Any:
    """Return what a simulation of the first rank says: figures, or why there are none."""
    from dataclasses import replace

    from accelerate.strategies.planning.plan import plan_mesh
    from accelerate.strategies.planning.simulate import simulate_mesh, step_for

    if plan.mesh.pp > 1 or plan.mesh.sp > 1:
        return "not simulated, as pp and sp need all their ranks to run"
    training = replace(plan.training, cp_comm_strategy="cpu")  # ring attention has no kernels without an accelerator
    found = simulate_mesh(subject, plan.mesh, training, step=step_for(subject.model))
    return found, found.differences(plan_mesh(subject, plan.mesh, training).ranks[0])


def _show(args: argparse.Namespace, training: Any, found: Sequence[Any], simulated: Sequence[Any]) -> None:
    from accelerate.commands.estimate import create_ascii_table
    from accelerate.strategies.planning.training import PRECISIONS

    if not found:
        print(f"None of the usual meshes of {args.num_processes} processes fits {args.model_name}; name one.")
        return
    rows = [_memory(each.fullest.memory) for each in found]
    unit, cells = in_one_unit(rows)
    table = [[str(each.mesh), *row] for each, row in zip(found, cells, strict=True)]
    print(create_ascii_table(["Mesh", *HEADERS], table, f"Memory of the fullest rank for {args.model_name}, {unit}"))
    unit, cells = in_one_unit([[*map(_busiest(each).sent, SENT), _busiest(each).total] for each in found])
    table = [[str(each.mesh), *row, _tokens(each)] for each, row in zip(found, cells, strict=True)]
    title = f"Sent by the busiest rank in an update, {unit}"
    print(create_ascii_table(["Mesh", *SENT.values(), "All", "Tokens"], table, title))
    again = "with" if training.activation_checkpointing else "without"
    print(f"{training.precision}: {PRECISIONS[training.precision]}.")
    print(f"{training.optimizer}; {training.batch_size} x {training.sequence_length} tokens per micro-batch;", end=" ")
    print(f"{again} activation checkpointing.")
    print("Computed, not measured. Tokens: of an update, on all ranks.")
    if subject_is_unknown(found):
        print("Activations are not known: no config.json says what kind of transformer this is.")
    for plan, what in zip(found, simulated, strict=False):
        print(f"{plan.mesh}: {_said_of(what, plan)}")


def subject_is_unknown(found: Sequence[Any]) -> bool:
    """Whether plans are without activations."""
    return any(each.fullest.memory.activations is None for each in found)


def _busiest(plan: Any) -> Any:
    return max(plan.ranks, key=lambda each: each.total)


def _memory(memory: Any) -> list[int | None]:
    return [memory.parameters, memory.gradients, memory.optimizer, memory.activations, memory.peak]


def _tokens(plan: Any) -> str:
    count = plan.tokens
    return f"{count / 2**20:.1f}M" if count >= 2**20 else f"{count / 2**10:.0f}K"


def _said_of(what: Any, plan: Any) -> str:
    """Return a sentence on a simulation."""
    from accelerate.big_modeling.units import readable

    if isinstance(what, str):
        return what
    found, differences = what
    if differences:
        return "a simulation differs: " + "; ".join(differences)
    peak = "" if found.peak is None else f", and has a peak of {readable(found.peak)}"
    return f"a simulation of its first rank agrees{peak}"


def in_one_unit(rows: Sequence[Sequence[int | None]]) -> tuple[str, list[list[str]]]:
    """Return a unit that suits the largest of some numbers of bytes, and all of them in it; - for None and 0."""
    largest = max((size or 0 for row in rows for size in row), default=0)
    power = min(max(0, (largest.bit_length() - 1) // 10), 3)
    return UNITS[power], [["-" if not size else _short(size / 1024**power) for size in row] for row in rows]


def _short(number: float) -> str:
    return f"{number:.0f}" if number >= 100 else f"{number:.1f}" if number >= 10 else f"{number:.2f}"


def _as_json(args: argparse.Namespace, training: Any, found: Sequence[Any], simulated: Sequence[Any]) -> dict[str, Any]:
    from dataclasses import asdict

    entries = [each.as_dict() for each in found]
    for entry, what in zip(entries, simulated, strict=False):
        entry["simulated"] = what if isinstance(what, str) else asdict(what[0]) | {"differences": what[1]}
    return {"model": args.model_name, "training": asdict(training), "plans": entries}
