"""What a rank holds: parameters, gradients, optimizer states and activations, and its peak, as formulas.

Memory is highest at one of four moments: while the gradients of the logits are computed, when the backward pass goes
into the layers (activations are all there), when it ends (the gradients are), or in the update. Within the layers
gradients take the place of activations one by one, so nothing there is higher than both ends.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from accelerate.big_modeling.shapes import Shape
from accelerate.strategies.planning.case import Case
from accelerate.strategies.planning.facts import Parameter
from accelerate.strategies.planning.training import OPTIMIZERS

#: Bytes of the number that an optimizer counts its steps in.
STEP = 4
#: Units that are gathered at once: the one that computes, and the next one.
AT_ONCE = 2


@dataclass(frozen=True)
class Memory:
    """What one rank holds, in bytes.

    Args:
        parameters: with the padding that shards of even size have.
        gradients: likewise.
        optimizer: the states, which have no padding, and the tensors that count steps.
        messages: what is set aside to send gradients from.
        buffers: those of the model.
        gathered: what is whole for the time of its computation: gathered parameters and gradients, copies in 16 bits.
        activations: what is kept for the backward pass, of all micro-batches under way, and what the loss takes or a
            layer that is computed again; None: not known.
        peak: the most at any moment.
        moment: when that is: "loss", "backward begins", "backward ends" or "update".
    """

    parameters: int
    gradients: int
    optimizer: int
    messages: int
    buffers: int
    gathered: int
    activations: int | None
    peak: int
    moment: str


def memory(case: Case, shard: int = 0) -> Memory:
    """Return what the ranks of a stage hold that have one of the shards of a replica.

    Args:
        shard: the place of the rank among those that have the shards of one replica.
    """
    own = case.parameters
    trained = [each for each in own if each.is_trained]
    parameters, gradients = stored(case, own), stored(case, trained)
    optimizer, copies = states(case, trained, shard)
    messages = gradients if case.mesh.is_ddp else 0
    whole = gathered(case)
    layers, loss, one = (0, 0, 0) if case.shape is None else activations(case, case.shape)
    base = parameters + optimizer + messages + case.facts.buffers
    aside = gradients if case.mesh.pp > 1 else 0  # a pipeline keeps gradients aside, and hands out copies of them
    waiting = gradients if case.passes > 1 and case.mesh.pp == 1 else 0
    again = one if case.training.activation_checkpointing else 0
    moments = {
        "loss": base + waiting + whole.before + layers + loss,
        "backward begins": base + waiting + whole.during + layers + again,
        "backward ends": base + gradients + whole.after + one + aside,
        "update": base + gradients + copies,
    }
    moment = max(moments, key=moments.__getitem__)
    return Memory(
        parameters,
        gradients,
        optimizer,
        messages,
        case.facts.buffers,
        max(whole.before, whole.during, whole.after),
        None if case.shape is None else layers + max(loss, again),
        moments[moment],
        moment,
    )


def stored(case: Case, parameters: Iterable[Parameter]) -> int:
    """Return the bytes of the shards of `parameters`, padding included."""
    return sum(map(case.padded, parameters)) * case.training.stored


def states(case: Case, trained: Iterable[Parameter], shard: int) -> tuple[int, int]:
    """Return the bytes of optimizer states, and of the copies that an update makes for a moment."""
    count, counts_steps, copies = OPTIMIZERS[case.training.optimizer]
    sizes = [case.held(each, shard) for each in trained]
    elements = sum(sizes) * case.training.stored
    return elements * count + STEP * len(sizes) * counts_steps, elements * copies


@dataclass(frozen=True)
class Gathered:
    """Bytes of what is whole for its computation: before the backward pass, while it is in the layers, in the end."""

    before: int
    during: int
    after: int


def gathered(case: Case) -> Gathered:
    """Return the bytes of parameters that are gathered or copied, with gradients that are not scattered yet.

    FSDP has the units whole that keep what they gathered; in the backward pass two units, with the gradients of one and
    a copy of them to send. In a pipeline all of a stage stays whole between backward passes, with its gradients.
    Without FSDP, autocast has copies of the matrices, and replicas of divided models one of all parameters, until the
    backward pass has used them.
    """
    size = case.training.computed
    if not case.mesh.is_sharded:
        copies = sum(case.numel(each) for each in case.parameters if each.is_matrix) * size if case.is_autocast else 0
        is_averaged = case.mesh.replicas > 1 and not case.mesh.is_ddp
        copies += stored(case, case.parameters) if is_averaged else 0
        return Gathered(copies, copies, 0)
    units, freed = Counter[int](), Counter[int]()
    for each in case.parameters:
        elements = case.padded(each) * case.mesh.shards
        units[each.unit] += elements
        freed[each.unit] += elements if case.reshards(each) else 0
    if case.mesh.pp > 1:
        return Gathered(units.total() * size, 3 * units.total() * size, 3 * units.total() * size)
    kept_whole = units.total() - freed.total()
    sending = 2 * _largest(units, 1)
    during = kept_whole if not any(freed.values()) else _largest(units, AT_ONCE)
    return Gathered(kept_whole * size, (during + sending) * size, (_largest(units, AT_ONCE) + sending) * size)


def _largest(units: Counter[int], count: int) -> int:
    """Return the elements of the largest units."""
    return sum(elements for _, elements in units.most_common(count))


def layer(case: Case, shape: Shape) -> int:
    """Return the bytes that one layer keeps for the backward pass of a micro-batch; see `shapes.kept_bytes`.

    What is divided over the ranks of tensor parallel is what lies between divided layers: queries, keys, values, what
    attention returns, and the inner activations.
    """
    copies = 4 if shape.gated else 1 if shape.rectified else 2
    each = norm(case, shape, 3) + norm(case, shape, 2 if shape.gated else 1)
    each += 2 * shape.hidden if shape.dropout else 0
    divided = case.training.computed * (2 * shape.queries + 2 * shape.keys + copies * shape.inner)
    return (each + divided // case.mesh.tp) * case.tokens


def norm(case: Case, shape: Shape, readers: int) -> int:
    """Return the bytes that a norm keeps for each token: what it normalizes, the normalized, and its result.

    Args:
        readers: how many layers read the result; with autocast each keeps a copy in 16 bits.
    """
    if case.is_autocast:
        return ((8 if shape.gated else 4) + case.training.computed * readers) * shape.hidden
    return (2 * case.training.computed + (4 if shape.gated else 0)) * shape.hidden


def activations(case: Case, shape: Shape) -> tuple[int, int, int]:
    """Return the bytes that layers keep when the backward pass begins, what the loss takes, and what one layer keeps.

    With activation checkpointing a block keeps its input, and one of them is computed again. The last stage has three
    tensors as large as the logits in fp32: their softmax, and its gradient and theirs.
    """
    one = layer(case, shape)
    each = case.tokens * shape.hidden * case.residual if case.training.activation_checkpointing else one
    loss = 0
    if case.stage == case.mesh.pp - 1:
        loss = case.tokens * (norm(case, shape, 1) + 3 * 4 * shape.vocabulary)
    return case.layers * each * under_way(case), loss, one


def under_way(case: Case) -> int:
    """Return how many micro-batches have activations at once on a stage."""
    if case.mesh.pp == 1:
        return 1
    return case.passes if case.training.schedule == "gpipe" else min(case.mesh.pp - case.stage, case.passes)
