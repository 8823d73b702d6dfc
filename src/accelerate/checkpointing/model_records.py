"""The records of models whose state is the same on all ranks: how their weights are saved, checked and restored."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from accelerate.checkpointing.durable import Sink
from accelerate.checkpointing.layout import model_names
from accelerate.checkpointing.objects import groups_of_names, place_of, without_shared_tensors, write_object
from accelerate.checkpointing.problems import shape_of, shortened, unreadable
from accelerate.checkpointing.reading import can_take_bytes
from accelerate.checkpointing.records import Record
from accelerate.checkpointing.source import Source
from accelerate.checkpointing.tensors import read_into, read_specs, write_tensors


class ModelRecord(Record):
    """A model whose state is the same on all ranks.

    Args:
        index: its place among the models that are saved or loaded.
        weights: its state, under the names of the bare model.
        load: puts a state into the model; takes the keyword arguments of `load_state_dict`.
        safe: write safetensors.
        live: the parameters and buffers of the model. Values are read into those that `weights` share memory with, and
            what is then loaded into the model is itself, which costs nothing and lets its hooks see what they should.
    """

    part = "models"

    def __init__(
        self,
        index: int,
        weights: Mapping[str, Any],
        load: Callable[..., Any] | None = None,
        safe: bool = True,
        live: Sequence[torch.Tensor] = (),
    ) -> None:
        self.names = model_names(index)
        super().__init__(self.names[0 if safe else 1])
        self.weights = weights
        self.load = load
        self.safe = safe
        self.live = live

    def state(self) -> Any:
        return self.weights

    def write(self, sink: Sink, state: Any) -> None:
        if self.safe:
            tensors = _tensors(state)
            write_tensors(sink, state if len(tensors) < len(state) else without_shared_tensors(tensors))
        else:
            write_object(sink, state)

    def file(self, source: Source) -> str | None:
        """Return the name of the model's file in `source`."""
        return next((name for name in self.names if source.has(name)), None)

    def check(self, source: Source) -> list[str]:
        name = self.file(source)
        if name is None:
            return [f"{self.names[0]} is missing"]
        if problems := self._unreadable(source, name):
            return problems
        saved = self._shapes(source, name)
        groups = groups_of_names(_tensors(self.weights))
        missing = [names[0] for names in groups if not any(each in saved for each in names)]
        extra = [each for each in saved if each not in self.weights]
        others = [
            f"{each} (saved: {list(saved[each] or ())}, here: {list(self.weights[each].shape)})"
            for each in self._misshapen(saved)
        ]
        found = (("lacks", missing), ("has what the model doesn't have:", extra), ("has another shape for", others))
        return [f"{name} {what} {shortened(each)}" for what, each in found if each]

    def can_restore(self, source: Source) -> bool:
        name = self.file(source)
        return name is not None and not self._unreadable(source, name)

    def _unreadable(self, source: Source, name: str) -> list[str]:
        """Return why the file can't be read, a line or none; a folder of shards is looked at elsewhere."""
        if not source.has_file(name):
            return []
        if not name.endswith(".safetensors"):
            return unreadable(source, name)
        try:
            read_specs(source.folder / name)
        except ValueError:
            return [f"{name} can't be read: it is no whole safetensors file"]
        return []

    def _shapes(self, source: Source, name: str) -> dict[str, tuple[int, ...] | None]:
        if not source.has_file(name):
            return source.shapes(name)
        if name.endswith(".safetensors"):
            return dict(read_specs(source.folder / name))
        return {key: shape_of(value) for key, value in source.tensors(name).items()}

    def _misshapen(self, saved: Mapping[str, tuple[int, ...] | None]) -> list[str]:
        mine = {each: shape_of(value) for each, value in self.weights.items()}
        return [each for each in saved if each in mine and mine[each] != saved[each]]

    def restore(self, source: Source) -> None:
        name = self.file(source)
        assert name is not None
        assert self.load is not None
        kwargs = {"strict": source.strict, **source.model_kwargs}
        state = dict(self._values(source, name, in_place=not kwargs.get("assign")))
        for names in groups_of_names(_tensors(self.weights)):
            kept = next((each for each in names if each in state), None)
            if kept is not None:
                state = {**dict.fromkeys(names, state[kept]), **state}
        for each in self._misshapen({key: shape_of(value) for key, value in state.items()}):
            del state[each]
        self.load(source.owned(state) if kwargs.get("assign") else state, **kwargs)

    def _values(self, source: Source, name: str, in_place: bool) -> Mapping[str, Any]:
        """Return what was saved, mapped from a file; with `in_place`, read into the tensors there are where it fits."""
        live = self._shared() if in_place else {}
        if not source.has_file(name):
            from accelerate.checkpointing.sharded import into_model  # only who reads such a folder pays for it

            values = source.shards(name).read(into_model(self.weights)).get("model", {})
            return {key: live.get(key, value) for key, value in values.items()}
        values = source.tensors(name)
        if not name.endswith(".safetensors"):
            return values
        read = read_into(source.folder / name, live, source.threads)
        return {key: live[key] if key in read else value for key, value in values.items()}

    def _shared(self) -> dict[str, torch.Tensor]:
        """Return the parameters and buffers that share memory with the weights, by name."""
        places = {place_of(each): each for each in self.live if can_take_bytes(each) and each.numel()}
        found = {key: places.get(place_of(value)) for key, value in _tensors(self.weights).items()}
        return {key: value for key, value in found.items() if value is not None}


def model_records(
    weights: Sequence[Mapping[str, Any]],
    loads: Sequence[Callable[..., Any]],
    safe: bool,
    models: Sequence[torch.nn.Module] = (),
) -> list[Record]:
    """Return the records of models in order.

    Args:
        weights: their states; hooks may have added some that belong to no model, which can only be saved.
        loads: puts a state into the model.
        safe: write safetensors.
        models: the models, whose parameters are read into where that can be done.
    """
    live = [[*model.parameters(), *model.buffers()] for model in models]
    given = itertools.zip_longest(weights, loads[: len(weights)], live[: len(weights)])
    return [ModelRecord(index, state, load, safe, own or ()) for index, (state, load, own) in enumerate(given)]


def _tensors(state: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    return {name: value for name, value in state.items() if isinstance(value, torch.Tensor)}
