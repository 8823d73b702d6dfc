"""What ranks exchange on XLA devices, by torch_xla."""

from __future__ import annotations

import pickle
from typing import Any, ClassVar

import torch

from accelerate.comm.collectives import Collectives, Reduction


class XlaCollectives(Collectives):
    """All replicas of a torch_xla run, through `torch_xla.core.xla_model`; each call joins the lazy graph.

    Args:
        device: the XLA device of this replica.
        debug: see :class:`Collectives`.
    """

    packs_bytes: ClassVar[bool] = False  # XLA has every dtype, and reinterpreting bytes would cost a copy
    applies_scale: ClassVar[bool] = True

    def __init__(self, device: torch.device | str, *, debug: bool = False) -> None:
        import torch_xla.core.xla_model as xla_model
        import torch_xla.runtime as runtime

        super().__init__(runtime.global_ordinal(), runtime.world_size(), device, debug)
        self._xla = xla_model
        self._ops = {"sum": xla_model.REDUCE_SUM, "max": xla_model.REDUCE_MAX, "min": xla_model.REDUCE_MIN}

    def _gather_flat(self, flat: torch.Tensor) -> torch.Tensor:
        return self._xla.all_gather(flat, dim=0, pin_layout=False)

    def _reduce(self, tensor: torch.Tensor, op: Reduction) -> None:
        self._xla.all_reduce(self._ops[op], [tensor])  # a list is reduced in place

    def _send(self, tensor: torch.Tensor, source: int) -> None:
        self._xla.collective_broadcast([tensor], root_ordinal=source)

    def all_gather_object(self, value: Any) -> list[Any]:
        """Return every replica's picklable value, in rank order."""
        return [
            pickle.loads(each) for each in self._xla.rendezvous("accelerate.all_gather_object", pickle.dumps(value))
        ]

    def broadcast_object(self, value: Any, source: int = 0) -> Any:
        """Return the picklable value of replica `source`; the others send nothing."""
        payload = pickle.dumps(value) if self.rank == source else b""
        return pickle.loads(self._xla.rendezvous("accelerate.broadcast_object", payload)[source])

    def barrier(self) -> None:
        """Return when every replica has come here, all pending work included."""
        self._xla.rendezvous("accelerate.barrier")
