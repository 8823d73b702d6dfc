"""How many bytes a rank sends in one update, by kind of message and by axis, as formulas.

A message is counted by the bytes of the whole tensor that it gathers, scatters or adds up; what a rank sends of it is
that of the algorithms that go round in a ring: Thakur et al., Optimization of Collective Communication Operations in
MPICH (2005). Losses, norms and buffers, which take a few bytes, are left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from accelerate.big_modeling.shapes import Shape
from accelerate.strategies.planning.case import Case

GATHER, SCATTER, REDUCE, SEND, EXCHANGE = "all_gather", "reduce_scatter", "all_reduce", "send", "all_to_all"
#: The kinds of messages, in the order of tables.
KINDS = (GATHER, SCATTER, REDUCE, SEND, EXCHANGE)


@dataclass(frozen=True)
class Messages:
    """All messages of one kind along one axis in an update.

    Args:
        kind: see `KINDS`.
        axis: the axis, or the view of the mesh.
        ranks: how many take part in each.
        payload: bytes of the whole tensors, all messages together.
    """

    kind: str
    axis: str
    ranks: int
    payload: int

    @property
    def sent(self) -> int:
        """Bytes that a rank sends."""
        if self.kind == SEND:
            return self.payload
        rounds = 2 if self.kind == REDUCE else 1
        return -(-rounds * self.payload * (self.ranks - 1) // self.ranks)


def traffic(case: Case) -> list[Messages]:
    """Return what a rank of one stage of a pipeline sends in one update; what takes no bytes is left out."""
    found = [*_sharding(case), *_averaging(case), *_tensor(case)]
    if case.shape is not None:
        found += [*_context(case, case.shape), *_heads(case, case.shape), *_pipeline(case, case.shape)]
    return combined(found)


def combined(messages: Iterable[Messages]) -> list[Messages]:
    """Return messages with one entry for each kind and axis, in the order of `KINDS`."""
    total: dict[tuple[str, str, int], int] = {}
    for each in messages:
        key = each.kind, each.axis, each.ranks
        total[key] = total.get(key, 0) + each.payload
    found = (Messages(*key, payload) for key, payload in total.items() if payload and key[2] > 1)
    return sorted(found, key=lambda each: (KINDS.index(each.kind), each.axis))


def _sharding(case: Case) -> Iterator[Messages]:
    """Yield what FSDP sends: parameters are gathered once or twice for each micro-batch, and gradients scattered.

    In a pipeline, parameters stay whole between backward passes that follow each other, and gradients are scattered
    once.
    """
    mesh, training = case.mesh, case.training
    if not mesh.is_sharded:
        return
    gathered = scattered = 0
    for parameter in case.parameters:
        whole = case.padded(parameter) * mesh.shards * training.computed
        gathered += whole * _gathers(case, case.reshards(parameter))
        scattered += whole * (case.passes if mesh.pp == 1 else 1) if parameter.is_trained else 0
    yield Messages(GATHER, "shard", mesh.shards, gathered)
    yield Messages(SCATTER, "shard", mesh.shards, scattered)
    yield Messages(REDUCE, "replicate", mesh.replicas, scattered // mesh.shards)


def _gathers(case: Case, reshards: bool) -> int:
    """Return how often a unit is gathered in an update.

    In a pipeline a stage gathers for each forward pass that follows the one before (which freed what was there) or a
    backward pass of the end, and for each backward pass after a forward pass.
    """
    if case.mesh.pp == 1:
        return case.passes * (2 if reshards else 1)
    return case.passes + 1 if reshards else 1


def _averaging(case: Case) -> Iterator[Messages]:
    """Yield what replicas of whole parameters send: gradients, once for an update."""
    if not case.mesh.is_sharded:
        size = sum(case.numel(each) for each in case.parameters if each.is_trained) * case.training.stored
        yield Messages(REDUCE, "replicate", case.mesh.replicas, size)


def _tensor(case: Case) -> Iterator[Messages]:
    """Yield what divided layers send.

    By rows: outputs are added up in the forward pass. By columns: the gradients of inputs are, in the backward pass,
    and the outputs of the last layer are gathered. A block that is computed again sends what its forward pass does, but
    for its last layer, whose output nothing needs.
    """
    added = gathered = 0
    for layer in (each for each in case.facts.layers if each.stage == case.stage):
        again = case.training.activation_checkpointing and layer.in_block and not layer.is_last_of_block
        size = case.residual if layer.is_embedding else case.training.computed
        times = (2 if again else 1) * size
        added += layer.adds * times + layer.returns * case.residual
        gathered += layer.gathers * times
    yield Messages(REDUCE, "tp", case.mesh.tp, added * case.tokens * case.passes)
    yield Messages(GATHER, "tp", case.mesh.tp, gathered * case.tokens * case.passes)


def _context(case: Case, shape: Shape) -> Iterator[Messages]:
    """Yield what attention sends with context parallel.

    torch's ring passes on keys and values in both passes, and their gradients, in fp32, all the way round. A CPU
    gathers keys and values (the keys as rotated, in what the residual stream has), and scatters their gradients.
    """
    ranks, size = case.mesh.cp, case.training.computed
    forward = 2 if case.training.activation_checkpointing else 1
    elements = shape.keys // case.mesh.tp * case.tokens * case.passes * case.layers
    if case.training.cp_comm_strategy == "cpu":
        whole = elements * (case.residual + size) * ranks
        yield Messages(GATHER, "cp", ranks, whole * forward)
        yield Messages(SCATTER, "cp", ranks, whole)
        return
    fetched = 2 * elements * size * (forward + 1)  # the backward pass fetches them too
    if case.training.cp_comm_strategy == "allgather":
        yield Messages(GATHER, "cp", ranks, fetched * ranks)
    else:
        yield Messages(SEND, "cp", ranks, fetched * (ranks - 1))
    yield Messages(SEND, "cp", ranks, 2 * elements * 4 * ranks)


def _heads(case: Case, shape: Shape) -> Iterator[Messages]:
    """Yield what sequence parallel sends: parts of sequences for heads, and back.

    Queries, keys, values and the result are exchanged in both passes; where there are fewer heads of keys than ranks,
    they are repeated first.
    """
    forward = 2 if case.training.activation_checkpointing else 1
    heads = max(shape.key_value_heads // case.mesh.tp, case.mesh.sp)
    keys, queries = heads * shape.head_size, shape.queries // case.mesh.tp
    size = case.training.computed
    exchanged = (queries + keys) * case.residual + (keys + queries) * size
    total = exchanged * case.tokens * case.passes * case.layers * (forward + 1)
    yield Messages(EXCHANGE, "sp", case.mesh.sp, total)


def _pipeline(case: Case, shape: Shape) -> Iterator[Messages]:
    """Yield what a stage sends to the next one, activations, and to the one before, their gradients."""
    neighbours = (case.stage < case.mesh.pp - 1) + (case.stage > 0)
    yield Messages(SEND, "pp", case.mesh.pp, neighbours * shape.hidden * case.tokens * case.passes * case.residual)
