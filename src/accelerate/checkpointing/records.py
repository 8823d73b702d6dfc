"""What a checkpoint is made of: one record for each object, which knows how it is saved, checked and restored.

Saving takes `state()` of every record on the thread that trains and writes it later, perhaps on another thread.
Loading asks every record to `check` first, which changes nothing, and only then to `restore`. A strategy that lays
models or optimizers out in its own way brings its own records for them.
"""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import torch

from accelerate.base.messages import warn_once
from accelerate.checkpointing.durable import FileFact, Sink
from accelerate.checkpointing.layout import (
    custom_name,
    model_names,
    optimizer_name,
    optimizer_names,
    scheduler_name,
)
from accelerate.checkpointing.objects import (
    groups_of_names,
    place_of,
    unsafe_globals,
    without_shared_tensors,
    write_object,
)
from accelerate.checkpointing.optimizer_states import (
    by_number,
    flat_names,
    names_of_groups,
    parameters_of,
    unknown_names,
)
from accelerate.checkpointing.reading import can_take_bytes
from accelerate.checkpointing.source import Source
from accelerate.checkpointing.tensors import read_into, read_specs, write_tensors
from accelerate.comm.collectives import Collectives


class Record(ABC):
    """One file of a checkpoint and the object it belongs to.

    Args:
        name: the file's name.
    """

    #: What kind of object it is; `load_state(parts=[...])` chooses by these words.
    part: ClassVar[str]
    #: Every rank writes one of its own, rather than one rank for all.
    everywhere: ClassVar[bool] = False
    #: Every rank has to take part when its state is asked for, though one writes it.
    collective: ClassVar[bool] = False

    def __init__(self, name: str) -> None:
        self.name = name

    @abstractmethod
    def state(self) -> Any:
        """Return what is to be written; it may share memory with the object."""

    def save(self, folder: Path, state: Any, collectives: Collectives) -> dict[str, FileFact]:
        """Write what `state` returned, or a copy of it, and return what the files of this rank look like.

        Args:
            folder: the checkpoint that is being written.
            state: what to write.
            collectives: all ranks, of which a record that is written everywhere may ask something.
        """
        return self.save_file(folder, state)

    def save_file(self, folder: Path, state: Any) -> dict[str, FileFact]:
        """Write one file."""
        sink = Sink(folder / self.name)
        try:
            self.write(sink, state)
            fact = sink.finish()
        finally:
            sink.close()
        self.look_at(sink.path)
        return {self.name: fact}

    def write(self, sink: Sink, state: Any) -> None:
        """Write what `state` returned, or a copy of it, into one file."""
        write_object(sink, state)

    def look_at(self, path: Path) -> None:  # noqa: B027  (most files hold nothing to remark on)
        """Say what is remarkable about the file that was written."""

    @abstractmethod
    def check(self, source: Source) -> list[str]:
        """Return what would keep this record from being restored completely, a line each; change nothing."""

    def can_restore(self, source: Source) -> bool:
        """Return whether what fits can be restored although :meth:`check` has found something."""
        return not self.check(source)

    @abstractmethod
    def restore(self, source: Source) -> None:
        """Put the object into the state that the checkpoint has."""


class ObjectRecord(Record):
    """An object with `state_dict` and `load_state_dict`, written by `torch.save`.

    Args:
        name: the file's name.
        owner: the object.
    """

    def __init__(self, name: str, owner: Any) -> None:
        super().__init__(name)
        self.owner = owner

    def state(self) -> Any:
        return self.owner.state_dict()

    def look_at(self, path: Path) -> None:
        if refused := unsafe_globals(path):
            warn_once(
                f"{self.name} holds {', '.join(refused)}, which loading executes only if it is told to: call "
                "torch.serialization.add_safe_globals([...]) with what is yours before load_state."
            )

    def check(self, source: Source) -> list[str]:
        return unreadable(source, self.name)

    def restore(self, source: Source) -> None:
        self.owner.load_state_dict(source.owned(source.object(self.name)))


class SchedulerRecord(ObjectRecord):
    """A learning-rate scheduler."""

    part = "schedulers"


class ScalerRecord(ObjectRecord):
    """The gradient scaler of fp16 training."""

    part = "scaler"


class CustomRecord(ObjectRecord):
    """An object that the script registered for checkpointing."""

    part = "custom"
    collective = True  # such an object may gather its state from all ranks


class OptimizerRecord(ObjectRecord):
    """A prepared optimizer whose state is the same on all ranks.

    Args:
        index: its place among the prepared optimizers.
        optimizer: the optimizer.
        names: the names of its parameters, group by group.
    """

    part = "optimizers"

    def __init__(self, index: int, optimizer: Any, names: list[list[str | None]]) -> None:
        super().__init__(optimizer_name(index), optimizer)
        self.found_as = optimizer_names(index)
        self.index = index
        self.names = names

    def file(self, source: Source) -> str | None:
        """Return the name of the optimizer's file in `source`."""
        return next((name for name in self.found_as if source.has(name)), None)

    def check(self, source: Source) -> list[str]:
        name = self.file(source)
        problems = self._unreadable(source, name or self.name)
        if name is None or problems:
            return problems
        saved = self._saved(source, name)
        groups = [len(group["params"]) for group in saved["param_groups"]]
        own = [len(group["params"]) for group in self.owner.param_groups]
        if groups != own:
            return [f"{name} has parameter groups of {groups} parameters, the optimizer of {own}"]
        unknown = unknown_names(saved, self.names)
        if unknown:
            return [f"{name} holds parameters that the optimizer doesn't: {shortened(unknown)}"]
        return self._check_names(source) or self._check_shapes(by_number(saved, self.names))

    def _unreadable(self, source: Source, name: str) -> list[str]:
        """Return why the state can't be read, a line or none."""
        if source.has_file(name) or not source.has(name):
            return unreadable(source, name)
        try:
            self._saved(source, name)
        except Exception as error:  # whatever it is goes into the report, with everything else that is wrong
            return [f"{name} can't be read: {error}"]
        return []

    def _saved(self, source: Source, name: str) -> Mapping[str, Any]:
        """Return the saved state, of parameters by number or by name; out of a folder of shards without values."""
        return {"state": {}, **(source.object(name) if source.has_file(name) else source.outline(name))}

    def restore(self, source: Source) -> None:
        name = self.file(source)
        assert name is not None
        if source.has_file(name):
            saved = source.owned(by_number(self._saved(source, name), self.names))
        else:
            saved = self._read(source, name)
        self.owner.load_state_dict(saved)

    def _read(self, source: Source, name: str) -> dict[str, Any]:
        """Return the state in a folder of shards, of which this rank reads its own."""
        from accelerate.checkpointing.sharded import into_optimizer  # only who reads such a folder pays for it

        parameters = dict(zip(flat_names(self.names), parameters_of(self.owner), strict=True))
        read = source.shards(name).read(into_optimizer(self.owner, parameters))["optimizer"]
        return by_number({"state": {}, **read}, self.names)

    def _check_names(self, source: Source) -> list[str]:
        recorded = source.manifest.parameters if source.manifest is not None else []
        if self.index >= len(recorded):
            return []
        pairs = zip(itertools.chain(*recorded[self.index]), itertools.chain(*self.names), strict=True)
        others = [f"{mine} (saved: {saved})" for saved, mine in pairs if saved != mine and saved and mine]
        return [f"{self.name} holds other parameters in the place of {shortened(others)}"] if others else []

    def _check_shapes(self, state: Mapping[str, Any]) -> list[str]:
        """Compare the states of parameters with those that the optimizer has; one that never stepped has none."""
        saved = state["state"]
        parameters = itertools.chain(*(group["params"] for group in self.owner.param_groups))
        others = []
        for number, parameter in enumerate(parameters):
            have = self.owner.state.get(parameter, {}) if hasattr(self.owner.state, "get") else {}
            for key, value in saved.get(number, {}).items():
                mine = have.get(key)
                if _shape(mine) is not None and _shape(mine) != _shape(value):
                    others.append(f"{key} of parameter {number} (saved: {_shape(value)}, here: {_shape(mine)})")
        return [f"{self.name} has another shape for {shortened(others)}"] if others else []


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
            tensors = {name: value for name, value in state.items() if isinstance(value, torch.Tensor)}
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
        return {key: _shape(value) for key, value in source.tensors(name).items()}

    def _misshapen(self, saved: Mapping[str, tuple[int, ...] | None]) -> list[str]:
        mine = {each: _shape(value) for each, value in self.weights.items()}
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
        for each in self._misshapen({key: _shape(value) for key, value in state.items()}):
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


def optimizer_records(optimizers: Sequence[Any], models: Sequence[torch.nn.Module]) -> list[Record]:
    """Return the records of optimizers in order; `models` gives their parameters names."""
    names = names_by_identity(models)
    return [
        OptimizerRecord(index, optimizer, names_of_groups(optimizer, names))
        for index, optimizer in enumerate(optimizers)
    ]


def names_by_identity(models: Sequence[torch.nn.Module]) -> dict[int, str]:
    """Return the names that parameters have in the bare models, by the parameters' identity."""
    return {id(parameter): name for model in models for name, parameter in _named_parameters(model)}


#: What wrappers put into the names of parameters.
WRAPPER_PARTS = frozenset({"module", "_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"})


def _named_parameters(model: torch.nn.Module) -> Iterator[tuple[str, torch.nn.Parameter]]:
    """Yield parameters by the names they have in the bare model."""
    for name, parameter in model.named_parameters():
        kept = [part for part in name.split(".") if part not in WRAPPER_PARTS]
        yield ".".join(kept), parameter


def scheduler_records(schedulers: Sequence[Any]) -> list[Record]:
    """Return the records of schedulers in order."""
    return [SchedulerRecord(scheduler_name(index), scheduler) for index, scheduler in enumerate(schedulers)]


def custom_records(objects: Sequence[Any]) -> list[Record]:
    """Return the records of registered objects in order."""
    return [CustomRecord(custom_name(index), each) for index, each in enumerate(objects)]


def unreadable(source: Source, name: str) -> list[str]:
    """Return why a file that `torch.save` wrote can't be read, a line or none."""
    if not source.has(name):
        return [f"{name} is missing"]
    try:
        source.object(name)
    except Exception as error:  # whatever it is goes into the report, with everything else that is wrong
        reason = str(error).strip().splitlines() or [type(error).__name__]
        if "WeightsUnpickler" in str(error) or "weights_only" in str(error):
            return [f"{name} holds more than plain data: {_blamed(str(error))}"]
        return [f"{name} can't be read: {reason[0]}"]
    return []


def _blamed(text: str) -> str:
    """Return the sentence about what a file would have to execute, out of torch's long message."""
    line = next((line for line in text.splitlines() if "Unsupported" in line or "GLOBAL" in line), "")
    return (
        f"{line.partition('WeightsUnpickler error:')[2].strip() or line.strip()} "
        "(allow a class of yours with torch.serialization.add_safe_globals([Class]), or, if you trust whoever wrote "
        "the checkpoint, everything with load_state(load_kwargs={'weights_only': False}))"
    )


def shortened(names: Sequence[str], limit: int = 8) -> str:
    """Return names in a line, the first few of many."""
    rest = len(names) - limit
    return ", ".join(names[:limit]) + (f" and {rest} more" if rest > 0 else "")


def _tensors(state: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    return {name: value for name, value in state.items() if isinstance(value, torch.Tensor)}


def _shape(value: Any) -> tuple[int, ...] | None:
    return tuple(value.shape) if isinstance(value, torch.Tensor) else None
