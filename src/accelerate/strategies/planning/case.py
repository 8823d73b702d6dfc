"""A model, a mesh and a way to train: what formulas are about, and the sizes that all of them need."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from accelerate.big_modeling.shapes import Shape
from accelerate.strategies.planning.facts import ROOT, Facts, Parameter
from accelerate.strategies.planning.meshes import Mesh
from accelerate.strategies.planning.training import Training


@dataclass(frozen=True)
class Case:
    """A model on a mesh, trained in one way; seen from the ranks of one stage of a pipeline.

    Args:
        facts: what there is to know of the model.
        mesh: the mesh.
        training: how it is trained.
        shape: what activations follow from; None: they, and what is sent of them, are left out.
        stage: the stage.
    """

    facts: Facts
    mesh: Mesh
    training: Training
    shape: Shape | None = None
    stage: int = 0

    @property
    def passes(self) -> int:
        """How many micro-batches an update has."""
        return self.training.passes(self.mesh.pp)

    @property
    def tokens(self) -> int:
        """How many tokens of a micro-batch a rank computes."""
        return self.training.batch_size * self.training.sequence_length // self.mesh.sequence

    @property
    def is_autocast(self) -> bool:
        """Whether weights in fp32 are computed with in 16 bits by autocast; FSDP casts what it gathers instead."""
        return self.training.precision == "bf16" and not self.mesh.is_sharded

    @property
    def residual(self) -> int:
        """Bytes of an element of the residual stream, which autocast leaves in fp32."""
        return self.training.stored if self.is_autocast else self.training.computed

    @property
    def layers(self) -> int:
        """How many layers the stage has: its blocks, or an even share where blocks aren't known."""
        blocks, layers = self.facts.blocks, self.shape.layers if self.shape else 0
        return blocks[self.stage] if sum(blocks) == layers else -(-layers // len(blocks))

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        """The parameters of the stage."""
        return self.facts.of_stage(self.stage)

    def numel(self, parameter: Parameter) -> int:
        """Return the elements of a parameter on a rank, before it is sharded."""
        return prod(parameter.on_rank(self.mesh.tp))

    def padded(self, parameter: Parameter) -> int:
        """Return the elements of a shard of a parameter; all have as many rows as the largest."""
        rows, row = _rows(parameter.on_rank(self.mesh.tp))
        return -(-rows // self.mesh.shards) * row

    def held(self, parameter: Parameter, shard: int) -> int:
        """Return the elements of one shard of a parameter without padding; the last may have fewer, or none."""
        rows, row = _rows(parameter.on_rank(self.mesh.tp))
        most = -(-rows // self.mesh.shards)
        return max(0, min(most, rows - shard * most)) * row

    def reshards(self, parameter: Parameter) -> bool:
        """Whether the unit of a parameter frees it after the forward pass."""
        return self.training.reshard_after_forward and parameter.unit != ROOT and self.facts.reshards[parameter.unit]


def _rows(shape: tuple[int, ...]) -> tuple[int, int]:
    return (shape[0] if shape else 1), prod(shape[1:])
