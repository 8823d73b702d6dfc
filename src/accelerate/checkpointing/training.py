"""What there is to save and to restore: the prepared objects of a run, and the records that stand for them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import torch

from accelerate.checkpointing.layout import SCALER
from accelerate.checkpointing.manifest import Manifest, versions
from accelerate.checkpointing.position import GradientsRecord, LoadersRecord, RandomRecord, Windows, position_of
from accelerate.checkpointing.records import OptimizerRecord, Record, ScalerRecord, custom_records, scheduler_records
from accelerate.state.runtime import Runtime

#: The words by which `load_state(parts=[...])` chooses.
PARTS = ("models", "optimizers", "schedulers", "scaler", "custom", "data_loaders", "step", "rng")


class Keeper(Protocol):
    """A strategy, as far as checkpoints are concerned: how it lays out models and optimizers."""

    name: ClassVar[str]
    #: Optimizer states are the same on all ranks, so that any rank can write them.
    replicates: ClassVar[bool]

    def model_records(self, models: Sequence[Any], weights: Sequence[Any], *, safe: bool) -> list[Record]: ...

    def optimizer_records(self, optimizers: Sequence[Any], models: Sequence[Any]) -> list[Record]: ...

    def state_dict(self, model: Any, *, unwrap: bool = True) -> dict[str, Any]: ...

    def weights(self, model: Any) -> dict[str, Any]: ...

    def offloaded(self, model: Any) -> dict[str, Callable[[], torch.Tensor]]: ...


@dataclass(frozen=True)
class Training:
    """The prepared objects of a run; lists are those of the `Accelerator`."""

    runtime: Runtime
    strategy: Keeper
    models: Sequence[torch.nn.Module]
    optimizers: Sequence[Any]
    schedulers: Sequence[Any]
    data_loaders: Sequence[Any]
    custom: Sequence[Any]
    scaler: Any
    windows: Windows
    mixed_precision: str

    @property
    def loaders(self) -> list[Any]:
        """The data loaders that know where they stand."""
        return [loader for loader in self.data_loaders if hasattr(loader, "progress")]

    def weights(self, models: Sequence[torch.nn.Module]) -> list[Any]:
        """Return the states of models under the names of the bare models."""
        return [self.strategy.weights(model) for model in models]

    def records(
        self, models: Sequence[Any], weights: Sequence[Any], *, safe: bool = True, parts: Collection[str] = PARTS
    ) -> list[Record]:
        """Return the records of everything, in the order of restoring; random states come last.

        Args:
            models: the models to take along.
            weights: their states; those of models that are saved may come from somebody else.
            safe: write models as safetensors.
            parts: which kinds to take along.
        """
        make: dict[str, Callable[[], Sequence[Record]]] = {
            "models": lambda: self.strategy.model_records(models, weights, safe=safe),
            "optimizers": lambda: self.strategy.optimizer_records(self.optimizers, self.models),
            "schedulers": lambda: scheduler_records(self.schedulers),
            "scaler": lambda: [] if self.scaler is None else [ScalerRecord(SCALER, self.scaler)],
            "custom": lambda: custom_records(self.custom),
            "data_loaders": lambda: [LoadersRecord(self.loaders, self.runtime.gradient_state)] if self.loaders else [],
        }
        found = [record for part, records in make.items() if part in parts for record in records()]
        own = [part for part in ("rng", "step") if part in parts]
        if own:
            found.append(RandomRecord(self.runtime.topology, self.runtime.device, self.windows, own, self.schedulers))
        return found

    def gradients(self, models: Sequence[Any]) -> GradientsRecord:
        """Return the record of the gradients that `models` have accumulated."""
        return GradientsRecord(self.runtime.topology, models, self.models)

    def manifest(self, records: Sequence[Record], iteration: int) -> Manifest:
        """Return what a checkpoint of these records is, but for its files."""
        kinds = [record.part for record in records]
        loaders = [position_of(loader, self.runtime.gradient_state) for loader in self.loaders]
        return Manifest(
            world_size=self.runtime.topology.world_size,
            files={},
            parts={part: kinds.count(part) for part in PARTS if part in kinds},
            position={
                "iteration": iteration,
                "step": self.windows.step,
                "data_loaders": [_place(state) for state in loaders],
                "strategy": self.strategy.name,
                "mixed_precision": self.mixed_precision,
            },
            parameters=[record.names for record in records if isinstance(record, OptimizerRecord)],
            versions=versions(),
        )


def _place(state: Mapping[str, Any]) -> dict[str, int]:
    return {"epoch": int(state["epoch"]), "batches": int(state["batches"])}
