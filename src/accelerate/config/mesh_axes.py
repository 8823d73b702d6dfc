"""The axes of the mesh, in their order, the views of it that have a purpose, and sizes that fit a number of processes.

Facts and arithmetic alone: `ParallelismConfig` holds the sizes of a run, and builds the mesh.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

#: The axes in the order of the mesh, with what each one shares out.
AXES: Mapping[str, str] = {
    "pp": "parts of the layers, one after the other",
    "dp_replicate": "replicas that each see other data",
    "dp_shard": "shards of the model, that each see other data",
    "cp": "parts of each sequence (context parallel)",
    "sp": "parts of each sequence (sequence parallel)",
    "tp": "parts of each layer",
}
#: What a group of ranks is wanted for -> the axes it runs along, and its name among the views of the mesh. Sequences
#: are divided along one of two axes, cp or sp; the names are those of 1.15, from before sp could be combined.
VIEWS: Mapping[str, tuple[tuple[str, ...], str]] = {
    "data": (("dp_replicate", "dp_shard"), "dp"),
    "shard": (("dp_shard", "cp", "sp"), "dp_shard_cp"),
    "loss": (("dp_replicate", "dp_shard", "cp", "sp"), "dp_cp"),
}


def nearest_sizes(sizes: Mapping[str, int], processes: int, count: int = 3) -> list[str]:
    """Return the sizes nearest to `sizes` whose product is `processes`, a line each, the nearest first.

    Args:
        sizes: the size of each axis; those of 1 stay so, but for the axes of data.
        processes: how many processes there are.
        count: how many lines to return at most.
    """
    axes = [axis for axis in AXES if sizes.get(axis, 1) > 1 or axis == "dp_shard"]
    if not any(axis.startswith("dp") and sizes.get(axis, 1) > 1 for axis in axes):
        axes.append("dp_replicate")
    ranked = sorted(
        products(processes, len(axes)),
        key=lambda found: sum(abs(math.log(new / sizes.get(axis, 1))) for axis, new in zip(axes, found, strict=True)),
    )
    named = [
        " x ".join(f"{axis}_size={size}" for axis, size in zip(axes, found, strict=True) if size > 1)
        for found in ranked[:count]
    ]
    return [text or "sizes of 1" for text in named]


def products(number: int, factors: int) -> Iterator[tuple[int, ...]]:
    """Yield every way to write `number` as a product of so many factors, in their order."""
    if factors == 1:
        yield (number,)
        return
    for first in range(1, number + 1):
        if number % first == 0:
            yield from ((first, *rest) for rest in products(number // first, factors - 1))
