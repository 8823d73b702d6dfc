"""The axis interface: how the ranks that work on one batch divide the work among them.

Data parallel ranks see different batches; what they do with parameters is the strategy. Every other axis of the mesh
has ranks that are given the same batch and divide something of it: the layers' matrices (tensor), the sequences
(context), the layers themselves (pipeline). A run has one `Axis` object for each of these axes that has several ranks,
in the order of `AXES`. They know nothing of each other and nothing of the strategy, which asks them:

========================  ==========================================================================================
`check(bundle)`           before anything is changed: refuse what can't be divided
`prepare_model(model)`    the bare model, before precision, sharding and wrapping. Parameters may be replaced, and come
                          back in whatever shape: optimizers that were prepared with the model follow them by name
`prepare_data_loader(…)`  a prepared loader, when it is prepared together with a model. It yields the same batches to
                          all ranks of the axis without being asked, because loaders deal out shares along the axes
                          of data only (`DataShard`); those of sequence parallel read different ones and exchange them
`batch(…)`                around one step, where a script asks for it (`Accelerator.maybe_context_parallel`)
`backward(loss, compute)` the backward pass: `compute(loss)` is what would happen without the axis. An axis that
                          doesn't override it costs a step nothing
`total_norm(norm, p)`     the norm of what this rank holds -> the norm of the model, for clipping
========================  ==========================================================================================

and reads one fact, `averages`. A new axis is a file, a line in `AXES`, and its size in `ParallelismConfig`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import torch

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

    from accelerate.config.parallelism import ParallelismConfig
    from accelerate.state.runtime import Runtime
    from accelerate.strategies.bundle import Bundle


@dataclass(frozen=True)
class Place:
    """Where an axis is, and what it was told.

    Args:
        mesh: the ranks along the axis that this one belongs to: a mesh of one dimension.
        layout: the sizes of all axes.
        settings: the axis's own settings (`tp_handler`, ...), or None.
        runtime: who this process is and where it computes.
        only_main: the main process alone has read weights; other ranks may come with a model on the meta device.
    """

    mesh: DeviceMesh
    layout: ParallelismConfig
    settings: Any
    runtime: Runtime
    only_main: bool = False


class Axis(ABC):
    """One axis along which a batch's work is divided; complete once it is built from its `Place`."""

    name: ClassVar[str]
    #: Its ranks compute the losses of different tokens, so gradients are averaged over it as over replicas.
    averages: ClassVar[bool] = False

    def __init__(self, place: Place) -> None:
        self.place = place
        self.mesh = place.mesh

    def check(self, bundle: Bundle) -> None:  # noqa: B027  (most axes take everything)
        """Refuse what this axis can't divide, before anything is changed."""

    @abstractmethod
    def prepare_model(self, model: torch.nn.Module) -> torch.nn.Module:
        """Return the part of a bare model that this rank computes; the same object where it can be."""

    def prepare_data_loader(self, data_loader: Any) -> Any:
        """Return the loader that gives this rank its part of each batch."""
        return data_loader

    def batch(
        self, buffers: Sequence[torch.Tensor], dims: Sequence[int], kept: Collection[torch.Tensor]
    ) -> AbstractContextManager[Any]:
        """Return a context in which `buffers` hold this rank's part along their `dims`.

        Args:
            buffers: tensors that are changed in place.
            dims: the dim of each buffer that runs along the sequence.
            kept: those of `buffers` that need not be whole again afterwards.
        """
        return nullcontext()

    def backward(self, loss: torch.Tensor, compute: Callable[..., None], **kwargs: Any) -> None:
        """Compute the gradients of `loss`; `compute(loss, **kwargs)` does it as if there were no such axis."""
        compute(loss, **kwargs)

    def total_norm(self, norm: torch.Tensor, norm_type: float) -> torch.Tensor:
        """Return the norm of all gradients from that of the gradients of this rank, as far as DTensors don't say it."""
        return norm
