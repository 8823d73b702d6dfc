"""How much memory a model takes: to hold, to run and to train, in each number format.

Weights are counted exactly. Training with Adam holds 16 bytes for each parameter: Rajbhandari et al., ZeRO (2020),
section 3.1, which is also what fp32 and autocast come to (weights, gradients and two states of 4 bytes each). What
activations, keys and values take is in `shapes`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import torch

from accelerate.big_modeling.shapes import Shape, cache_bytes, forward_bytes, kept_bytes
from accelerate.big_modeling.sizes import class_names
from accelerate.big_modeling.tree import Tree
from accelerate.big_modeling.units import dtype_byte_size
from accelerate.config.enums import CustomDtype

if TYPE_CHECKING:
    from accelerate.big_modeling.memory_map import MemoryMap

#: Number formats by the name that a person writes, from the largest.
FORMATS: dict[str, Any] = {
    "float32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "fp8": CustomDtype.FP8,
    "int8": torch.int8,
    "int4": CustomDtype.INT4,
}

#: Those that a model is trained in.
TRAINED = ("float32", "float16", "bfloat16")

#: Bytes for each parameter in training.
GRADIENT, ADAM = 4, 8

#: Nothing computes in fewer bytes than this throughout; what is stored in fewer is unpacked layer by layer.
COMPUTED = 2


@dataclass(frozen=True)
class Estimate:
    """What a model takes in one number format, in bytes; None is what the format or the model has no answer for.

    Args:
        dtype: the name of the format.
        largest_layer: of the weights, the largest part that can't be split.
        weights: all of them.
        gradients: of all weights, in fp32.
        optimizer: the two states of Adam, in fp32.
        training: the weights in fp32, gradients and optimizer; activations come on top.
        activations: what a forward without gradients holds at its widest place.
        kept: what a forward keeps for the backward pass.
        kv_cache: keys and values of all tokens, for generation.
    """

    dtype: str
    largest_layer: float
    weights: float
    gradients: float | None
    optimizer: float | None
    training: float | None
    activations: float | None
    kept: float | None
    kv_cache: float | None

    @property
    def inference(self) -> float:
        """What running the model takes in all: weights, activations, and keys and values where these are known."""
        return self.weights + (self.activations or 0) + (self.kv_cache or 0)

    def as_dict(self) -> dict[str, Any]:
        """Return the figures by name."""
        return {**asdict(self), "inference": self.inference}


def estimate(
    model: torch.nn.Module,
    no_split: Iterable[str] = (),
    config: Mapping[str, Any] | None = None,
    *,
    dtypes: Iterable[str] = tuple(FORMATS),
    batch_size: int = 1,
    sequence_length: int = 0,
) -> list[Estimate]:
    """Return what a model takes, in several number formats.

    Args:
        model: the model, on any device.
        no_split: names of classes that are not to be split.
        config: its configuration.
        dtypes: names of formats.
        batch_size: how many sequences at a time.
        sequence_length: of how many tokens; 0 leaves out what depends on them.
    """
    counts = count(model, no_split)
    shape = Shape.of(config or {}) if sequence_length else None
    return [_estimate(name, counts, shape, batch_size * sequence_length) for name in dtypes]


@dataclass(frozen=True)
class Counts:
    """What a model consists of.

    Args:
        floats: elements of floating-point tensors.
        others: bytes of all other tensors, which no format changes.
        largest_floats: elements of floating-point tensors in the largest part that can't be split.
        largest_others: bytes of all others in it.
        largest: its name.
    """

    floats: int
    others: float
    largest_floats: int
    largest_others: float
    largest: str


def count(model: torch.nn.Module, no_split: Iterable[str] = ()) -> Counts:
    """Count the elements of a model, those with several names once."""
    whole = class_names(list(no_split))
    floats, others = Tree(model, whole, _elements), Tree(model, whole, _other_bytes)
    layers = [node for node in floats.nodes if node.whole]
    largest = max(layers, key=lambda node: node.size, default=floats.root)
    beside = others.nodes[largest.start].size
    return Counts(int(floats.root.size), others.root.size, int(largest.size), beside, largest.name)


def _elements(name: str, tensor: torch.Tensor) -> int:
    return tensor.numel() if tensor.is_floating_point() else 0


def _other_bytes(name: str, tensor: torch.Tensor) -> int | float:
    return 0 if tensor.is_floating_point() else tensor.numel() * dtype_byte_size(tensor.dtype)


def _estimate(dtype: str, counts: Counts, shape: Shape | None, tokens: int) -> Estimate:
    size = dtype_byte_size(FORMATS[dtype])
    trained = dtype in TRAINED
    gradients, optimizer = counts.floats * GRADIENT, counts.floats * ADAM
    in_full = counts.floats * 4 + counts.others
    computed = max(size, COMPUTED)
    return Estimate(
        dtype=dtype,
        largest_layer=counts.largest_floats * size + counts.largest_others,
        weights=counts.floats * size + counts.others,
        gradients=gradients if trained else None,
        optimizer=optimizer if trained else None,
        training=in_full + gradients + optimizer if trained else None,
        activations=None if shape is None else forward_bytes(shape, tokens, computed),
        kept=kept_bytes(shape, tokens, computed) if shape is not None and trained else None,
        kv_cache=None if shape is None else cache_bytes(shape, tokens, computed),
    )


@dataclass(frozen=True)
class Share:
    """What one device of a plan takes, in bytes.

    Args:
        device: as it is called in maps.
        weights: those that are kept on it.
        kv_cache: keys and values of the layers that run on it; None where the shape isn't known.
        activations: what a forward holds at its widest place, on devices that run something.
        training: weights, gradients and states of Adam of what is kept on it; None for formats that aren't trained in.
    """

    device: int | str
    weights: float
    kv_cache: float | None
    activations: float | None
    training: float | None


def shares(drawn: MemoryMap, whole: Estimate) -> list[Share]:
    """Divide an estimate among the devices of a plan.

    Keys and values are divided as the blocks that run on each device are, by their bytes; parts that are offloaded run
    on the first accelerator.

    Args:
        drawn: the plan.
        whole: the estimate for the same number format.
    """
    blocks = {row.device: float(drawn.block_bytes(row.device)) for row in drawn.rows}
    for device in [each for each in blocks if drawn.runs_on(each) != each]:
        moved, main = blocks.pop(device), drawn.runs_on(device)
        blocks[main] = blocks.get(main, 0) + moved
    total = sum(blocks.values()) or 1
    found = []
    for row in drawn.rows:
        runs = drawn.runs_on(row.device) == row.device
        part = row.used / (sum(each.used for each in drawn.rows) or 1)
        cache = None if whole.kv_cache is None else whole.kv_cache * blocks.get(row.device, 0) / total
        activations = whole.activations if runs and row.parts else whole.activations and 0.0
        training = None if whole.training is None else whole.training * part
        found.append(Share(row.device, row.used, cache, activations, training))
    return found
