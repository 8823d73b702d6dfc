"""Meshes that a model doesn't fit are refused before anything is computed, with the sizes that fit."""

from __future__ import annotations

from accelerate.base.messages import message
from accelerate.strategies.planning.facts import Subject
from accelerate.strategies.planning.meshes import Mesh
from accelerate.strategies.planning.training import Training


def check_fit(subject: Subject, mesh: Mesh, training: Training) -> None:
    """Refuse a mesh that a model can't be trained on.

    Raises:
        ValueError: it can't.
    """
    if mesh.cp > 1 and mesh.sp > 1:
        raise ValueError(
            message(
                given=f"the mesh {mesh}",
                why="cp and sp both divide sequences, each in its own way",
                allowed="one of them greater than 1",
                do="leave one of them out",
            )
        )
    passes = training.passes(mesh.pp)
    if mesh.pp > 1 and training.schedule == "1f1b" and passes < mesh.pp:
        raise ValueError(
            message(
                given=f"num_microbatches={passes} with pp={mesh.pp}",
                why="a pipeline has each stage work on another micro-batch",
                allowed=f"{mesh.pp} or more",
                do=f"pass num_microbatches={mesh.pp}, better several times as many",
            )
        )
    _check_lengths(mesh, training)
    _check_stages(subject, mesh)
    _check_heads(subject, mesh)


def _check_lengths(mesh: Mesh, training: Training) -> None:
    for axis in ("cp", "sp"):
        size = getattr(mesh, axis)
        if training.sequence_length % size:
            below = training.sequence_length // size * size
            raise ValueError(
                message(
                    given=f"sequence_length={training.sequence_length} with {axis}={size}",
                    why="every rank has an equally long part of each sequence",
                    allowed=f"{below} or {below + size}" if below else str(size),
                    do=f"change the length, or {axis}",
                )
            )


def _check_stages(subject: Subject, mesh: Mesh) -> None:
    layers = subject.shape.layers if subject.shape is not None else mesh.pp
    if mesh.pp > layers:
        raise ValueError(
            message(
                given=f"pp={mesh.pp} for a model with {layers} layers",
                why="a stage that has no layer has next to nothing to compute",
                allowed=f"a pp of {layers} or less",
                do="change pp, and let another axis take the other ranks",
            )
        )
    if mesh.pp > 1 and mesh.sequence > 1:
        raise ValueError(
            message(
                given=f"the mesh {mesh}",
                why="what a pipeline holds and sends is not planned for stages that divide sequences",
                allowed="pp with dp_replicate, dp_shard and tp",
                do="leave pp out, or the axis that divides sequences",
            )
        )


def _check_heads(subject: Subject, mesh: Mesh) -> None:
    shape = subject.shape
    if shape is None:
        return
    for axis in ("tp", "sp"):
        size = getattr(mesh, axis)
        for what, count in (("heads", shape.heads), ("heads of keys and values", shape.key_value_heads)):
            repeats = axis == "sp" and size % count == 0 and what != "heads"  # fewer heads of keys are repeated
            if count % size and not repeats:
                divisors = [each for each in range(1, count + 1) if count % each == 0]
                raise ValueError(
                    message(
                        given=f"{axis}={size} for a model with {count} {what}",
                        why="each rank computes whole heads, as many as every other",
                        allowed=f"a size of {', '.join(map(str, divisors))}",
                        do=f"change {axis}, and let another axis take the other ranks",
                    )
                )
