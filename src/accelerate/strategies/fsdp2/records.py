"""How sharded models and optimizers lie in a checkpoint: by shard, or whole.

Whichever was written, by this strategy or another and by however many processes, is read: shards by each rank for
itself, whole files by taking this rank's part of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch.distributed.tensor import DTensor, distribute_tensor

from accelerate.base.constants import FSDP_MODEL_NAME, OPTIMIZER_NAME
from accelerate.checkpointing.durable import FileFact
from accelerate.checkpointing.layout import full_model_name, optimizer_name
from accelerate.checkpointing.metadata import is_sharded_folder
from accelerate.checkpointing.model_records import ModelRecord
from accelerate.checkpointing.optimizer_states import by_name, by_number, parameters_of
from accelerate.checkpointing.records import OptimizerRecord
from accelerate.checkpointing.sharded import UNWANTED, name_of, write_shards
from accelerate.checkpointing.source import Source
from accelerate.checkpointing.tensors import like, local_of
from accelerate.comm.collectives import Collectives


class ShardedModelRecord(ModelRecord):
    """A model that every rank writes its shards of.

    Args:
        index: its place among the models.
        weights: its state: DTensors that share memory with the parameters.
        load: puts a whole state into the model.
    """

    everywhere = True

    def __init__(self, index: int, weights: Mapping[str, Any], load: Callable[..., Any] | None) -> None:
        super().__init__(index, weights, load)
        self.name = f"{FSDP_MODEL_NAME}_{index}"

    def save(self, folder: Path, state: Any, collectives: Collectives) -> dict[str, FileFact]:
        return write_shards(folder / self.name, {"model": state}, collectives)

    def restore(self, source: Source) -> None:
        name = self.file(source)
        if name is None or not is_sharded_folder(source.folder / name):
            super().restore(source)
            return
        misshapen = set(self._misshapen(source.shapes(name)))
        fitting = {key: value for key, value in self.weights.items() if key not in misshapen}
        source.shards(name).read(lambda path, entry: fitting.get(name_of(path), UNWANTED))


class WholeModelRecord(ShardedModelRecord):
    """A sharded model that the main process writes as a whole.

    Args:
        gather: returns the whole state on the main process; all ranks take part.
    """

    everywhere = False
    collective = True

    def __init__(
        self,
        index: int,
        weights: Mapping[str, Any],
        load: Callable[..., Any] | None,
        gather: Callable[[], dict[str, Any]],
    ) -> None:
        super().__init__(index, weights, load)
        self.name, self.gather, self.safe = full_model_name(index), gather, False

    def state(self) -> Any:
        return self.gather()

    def save(self, folder: Path, state: Any, collectives: Collectives) -> dict[str, FileFact]:
        return self.save_file(folder, state)


class ShardedOptimizerRecord(OptimizerRecord):
    """An optimizer of sharded parameters, of whose state every rank writes its shards, by the parameters' names."""

    everywhere = True

    def __init__(self, index: int, optimizer: Any, names: list[list[str | None]]) -> None:
        super().__init__(index, optimizer, names)
        self.name = f"{OPTIMIZER_NAME}_{index}"

    def state(self) -> Any:
        return by_name(self.owner.state_dict(), self.names)

    def save(self, folder: Path, state: Any, collectives: Collectives) -> dict[str, FileFact]:
        return write_shards(folder / self.name, {"optimizer": state}, collectives)

    def restore(self, source: Source) -> None:
        name = self.file(source)
        assert name is not None
        if not source.has_file(name):
            super().restore(source)
            return
        saved = by_number(source.object(name), self.names)
        saved["state"] = {number: self._shares(number, each) for number, each in saved["state"].items()}
        self.owner.load_state_dict(source.owned(saved))

    def take_shards(self, saved: Mapping[str, Any]) -> None:
        """Load what this rank held of the state, out of a file of its own."""
        state = by_number(saved, self.names)
        for number, each in state["state"].items():
            parameter = parameters_of(self.owner)[number]
            own = local_of(parameter)
            for key, value in each.items():
                if isinstance(value, torch.Tensor) and value.shape == own.shape:
                    each[key] = like(value.to(own.device), parameter)
        self.owner.load_state_dict(state)

    def _shares(self, number: int, state: Mapping[str, Any]) -> dict[str, Any]:
        """Return this rank's part of what was saved whole for a parameter."""
        parameter = parameters_of(self.owner)[number]
        if not isinstance(parameter, DTensor):
            return dict(state)
        device = parameter.to_local().device
        return {
            key: distribute_tensor(value.to(device), parameter.device_mesh, parameter.placements)
            if isinstance(value, torch.Tensor) and value.shape == parameter.shape
            else value
            for key, value in state.items()
        }


class WholeOptimizerRecord(ShardedOptimizerRecord):
    """An optimizer of sharded parameters whose state the main process writes as a whole.

    Args:
        keep: this rank writes it.
    """

    everywhere = False
    collective = True

    def __init__(self, index: int, optimizer: Any, names: list[list[str | None]], keep: bool) -> None:
        super().__init__(index, optimizer, names)
        self.name, self.keep = optimizer_name(index), keep

    def state(self) -> Any:
        named = super().state()
        return {**named, "state": {name: self._gathered(each) for name, each in named["state"].items()}}

    def _gathered(self, state: Mapping[str, Any]) -> dict[str, Any]:
        whole = {key: each.full_tensor() if isinstance(each, DTensor) else each for key, each in state.items()}
        if not self.keep:
            return {}
        return {key: each.to("cpu", copy=True) if hasattr(each, "to") else each for key, each in whole.items()}

    def save(self, folder: Path, state: Any, collectives: Collectives) -> dict[str, FileFact]:
        return self.save_file(folder, state)
