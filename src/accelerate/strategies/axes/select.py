"""Which axes a run has besides those of data, and how a strategy asks all of them at once."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from accelerate.base.registry import Registry
from accelerate.strategies.axes.base import Axis, Place

if TYPE_CHECKING:
    from accelerate.strategies.base import Setup

#: The axes that there are, in the order in which a model is divided along them.
AXES: Registry[type[Axis]] = Registry("axes")
AXES.register("tp", "accelerate.strategies.axes.tensor:Tensor")
AXES.register("pp", "accelerate.strategies.axes.pipeline:Pipeline")
AXES.register("cp", "accelerate.strategies.axes.context:Context")
AXES.register("sp", "accelerate.strategies.axes.sequence:Sequences")


def axes_of(setup: Setup) -> tuple[Axis, ...]:
    """Return the axes of a run that have several ranks, in the order in which a model is divided along them."""
    layout, mesh = setup.parallelism, setup.mesh
    if layout is None or mesh is None:
        return ()
    only_main = bool(getattr(setup.fsdp_plugin, "cpu_ram_efficient_loading", False))
    return tuple(
        AXES.get(name)(Place(mesh[name], layout, getattr(layout, f"{name}_handler"), setup.runtime, only_main))
        for name in AXES.names()
        if name in layout.non_dp_dim_names
    )


def chained(axes: tuple[Axis, ...], compute: Callable[..., None]) -> Callable[..., None]:
    """Return the backward pass through the axes that have one of their own; `compute` itself where none has."""
    for axis in reversed(axes):
        if type(axis).backward is not Axis.backward:
            compute = partial(axis.backward, compute=compute)
    return compute


def combined(axes: tuple[Axis, ...], norm_type: float) -> Callable[[Any], Any]:
    """Return what makes the norm of the model of the norm of what this rank holds."""

    def total(norm: Any) -> Any:
        for axis in axes:
            norm = axis.total_norm(norm, norm_type)
        return norm

    return total
