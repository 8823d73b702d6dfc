"""A plan: what training one model on one mesh takes on each kind of rank, from formulas alone."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from accelerate.strategies.planning.case import Case
from accelerate.strategies.planning.facts import Subject, facts_of
from accelerate.strategies.planning.memory import Memory, memory
from accelerate.strategies.planning.meshes import Mesh, usual_meshes
from accelerate.strategies.planning.refusals import check_fit
from accelerate.strategies.planning.traffic import KINDS, Messages, traffic
from accelerate.strategies.planning.training import Training


@dataclass(frozen=True)
class Rank:
    """One kind of rank: all ranks of a stage with shards of one size take the same.

    Args:
        stage: of the pipeline.
        shard: its place among the ranks that have the shards of a replica.
        memory: what it holds, in bytes.
        messages: what it sends in one update.
    """

    stage: int
    shard: int
    memory: Memory
    messages: tuple[Messages, ...]

    def sent(self, kind: str) -> int:
        """Return the bytes that it sends in messages of one kind."""
        return sum(each.sent for each in self.messages if each.kind == kind)

    @property
    def total(self) -> int:
        """The bytes that it sends."""
        return sum(map(self.sent, KINDS))


@dataclass(frozen=True)
class Plan:
    """What training takes on a mesh.

    Args:
        mesh: the mesh.
        training: how the model is trained.
        ranks: of each stage the first and the last rank.
    """

    mesh: Mesh
    training: Training
    ranks: tuple[Rank, ...]

    @property
    def fullest(self) -> Rank:
        """The rank with the highest peak."""
        return max(self.ranks, key=lambda each: each.memory.peak)

    @property
    def tokens(self) -> int:
        """How many tokens an update has, on all ranks."""
        training, mesh = self.training, self.mesh
        return mesh.data * training.batch_size * training.sequence_length * training.passes(mesh.pp)

    def as_dict(self) -> dict[str, Any]:
        """Return the figures by name, for JSON."""
        return {
            "mesh": self.mesh.sizes(),
            "num_processes": self.mesh.size,
            "tokens": self.tokens,
            "ranks": [
                {
                    "stage": each.stage,
                    "shard": each.shard,
                    "memory": asdict(each.memory),
                    "sent": {kind: each.sent(kind) for kind in KINDS},
                    "messages": [asdict(one) | {"sent": one.sent} for one in each.messages],
                }
                for each in self.ranks
            ],
        }


def plan_mesh(subject: Subject, mesh: Mesh, training: Training) -> Plan:
    """Return what training a model on a mesh takes on each rank.

    Args:
        subject: the model.
        mesh: the sizes of the axes.
        training: how it is trained.

    Raises:
        ValueError: the model can't be divided like that.
    """
    check_fit(subject, mesh, training)
    facts = facts_of(subject, pp=mesh.pp, tp=mesh.tp)
    shape = subject.shape if training.sequence_length else None
    ranks = []
    for stage in range(mesh.pp):
        case = Case(facts, mesh, training, shape, stage)
        messages = tuple(traffic(case))
        ranks += [Rank(stage, shard, memory(case, shard), messages) for shard in dict.fromkeys((0, mesh.shards - 1))]
    return Plan(mesh, training, tuple(ranks))


def plan_meshes(
    subject: Subject, processes: int, training: Training, meshes: Iterable[Mesh] | None = None
) -> list[Plan]:
    """Return the plans for several meshes: those that are given, or the usual ones that fit the model.

    Raises:
        ValueError: one that is given doesn't fit.
    """
    if meshes is not None:
        return [plan_mesh(subject, each, training) for each in meshes]
    found = []
    for mesh in usual_meshes(processes):
        try:
            found.append(plan_mesh(subject, mesh, training))
        except ValueError:  # a mesh that this model doesn't fit
            continue
    return found
