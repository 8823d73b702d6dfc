"""Whether a mesh has as many places as there are processes: told before they are started, once and not by each."""

from __future__ import annotations

import math

from accelerate.base.messages import message
from accelerate.config.mesh_axes import AXES, nearest_sizes
from accelerate.launchers.settings import LaunchSettings


def mesh_fits(settings: LaunchSettings) -> None:
    """Refuse sizes of axes whose product is another number than that of the processes.

    Raises:
        ValueError: it is.
    """
    dests = {axis: f"parallelism_config_{axis}_size" for axis in AXES}
    sizes = {axis: int(settings.get(dest)) for axis, dest in dests.items()}
    product, processes = math.prod(sizes.values()), settings.num_processes
    if not settings.lays_out or product in (1, processes):
        return
    said = ", ".join(settings.said(dests[axis]) for axis, size in sizes.items() if size > 1)
    raise ValueError(
        message(
            given=f"{said}, for {processes} process{'es' * (processes > 1)}",
            why=f"the mesh has {product} places, and every process needs one",
            allowed=" or ".join(nearest_sizes(sizes, processes)),
            do=f"change a size, or start as many processes as there are places (--num_processes {product})",
        )
    )
