"""The meshes that are planned for: read from text, checked against a model, or a list of what is worth looking at."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import astuple, dataclass, fields
from math import prod

from accelerate.base.messages import did_you_mean, message
from accelerate.config.mesh_axes import AXES, nearest_sizes

#: Ranks of one machine, within which axes that divide layers stay.
MACHINE = 8


@dataclass(frozen=True)
class Mesh:
    """The sizes of the axes of a mesh, in their order, and how a run of these sizes divides a model.

    Parameters are sharded over `dp_shard` and the axes of sequences; without `dp_shard` they are whole, and gradients
    are averaged over these axes.
    """

    pp: int = 1
    dp_replicate: int = 1
    dp_shard: int = 1
    cp: int = 1
    sp: int = 1
    tp: int = 1

    @property
    def size(self) -> int:
        """How many ranks there are."""
        return prod(astuple(self))

    @property
    def sequence(self) -> int:
        """How many ranks share a sequence."""
        return self.cp * self.sp

    @property
    def data(self) -> int:
        """How many ranks see different batches."""
        return self.dp_replicate * self.dp_shard

    @property
    def is_sharded(self) -> bool:
        """Whether parameters are sharded by FSDP."""
        return self.dp_shard > 1

    @property
    def shards(self) -> int:
        """How many ranks have the shards of one replica."""
        return self.dp_shard * self.sequence if self.is_sharded else 1

    @property
    def replicas(self) -> int:
        """How many ranks average the gradients of what each of them holds."""
        return self.dp_replicate if self.is_sharded else self.dp_replicate * self.sequence

    @property
    def is_ddp(self) -> bool:
        """Whether replicas average their gradients by `DistributedDataParallel`."""
        return self.replicas > 1 and not self.is_sharded and self.tp == self.cp == 1

    def sizes(self) -> dict[str, int]:
        """Return the size of each axis."""
        return {each.name: getattr(self, each.name) for each in fields(self)}

    def __str__(self) -> str:
        return ",".join(f"{axis}={size}" for axis, size in self.sizes().items() if size > 1) or "one rank"


def parse_mesh(text: str) -> Mesh:
    """Return the mesh that `text` says, such as "dp_shard=64,tp=8".

    Raises:
        ValueError: it names no axis, one twice, or a size that is none.
    """
    sizes: dict[str, int] = {}
    for part in filter(None, (each.strip() for each in text.replace(" ", ",").split(","))):
        name, _, size = part.partition("=")
        axis = name.strip().removesuffix("_size")
        if axis not in AXES or axis in sizes or not size.strip().isdecimal() or int(size) < 1:
            raise ValueError(_not_a_mesh(text, part, axis, sizes))
        sizes[axis] = int(size)
    return Mesh(**sizes)


def _not_a_mesh(text: str, part: str, axis: str, sizes: dict[str, int]) -> str:
    if axis not in AXES:
        why, do = f"{axis!r} is no axis", did_you_mean(axis, AXES)
    elif axis in sizes:
        why, do = f"{axis} is there twice", "write each axis once"
    else:
        why, do = f"{part!r} has no size", "write how many ranks the axis has"
    allowed = f"axes with sizes from 1 on, as dp_shard=64,tp=8; axes: {', '.join(AXES)}"
    return message(given=f"the mesh {text!r}", why=why, allowed=allowed, do=do)


def check_size(mesh: Mesh, processes: int) -> None:
    """Refuse a mesh that hasn't as many ranks as there are processes.

    Raises:
        ValueError: it hasn't.
    """
    if mesh.size != processes:
        raise ValueError(
            message(
                given=f"the mesh {mesh}, which has {mesh.size} ranks, for {processes} processes",
                why="every process has one place in the mesh",
                allowed=" or ".join(nearest_sizes(mesh.sizes(), processes)).replace("_size", "").replace(" x ", ","),
                do=f"change a size, or plan for {mesh.size} processes",
            )
        )


def usual_meshes(processes: int) -> Iterator[Mesh]:
    """Yield meshes worth looking at for so many processes, the simplest first; not all of them fit every model."""
    if processes == 1:
        yield Mesh()
        return
    yield Mesh(dp_replicate=processes)
    yield Mesh(dp_shard=processes)
    inner = [size for size in (2, 4, MACHINE) if processes % size == 0 and processes > size]
    if MACHINE in inner:
        yield Mesh(dp_replicate=processes // MACHINE, dp_shard=MACHINE)
    for tp in inner:
        yield Mesh(dp_shard=processes // tp, tp=tp)
    if inner:
        yield Mesh(dp_shard=processes // inner[-1], cp=inner[-1])
    for pp in inner:
        yield Mesh(pp=pp, dp_replicate=processes // pp)
