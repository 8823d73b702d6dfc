"""What a checkpoint is made of: one record for each object, which knows how it is saved, checked and restored.

Saving takes `state()` of every record on the thread that trains and writes it later, perhaps on another thread.
Loading asks every record to `check` first, which changes nothing, and only then to `restore`. A strategy that lays
models or optimizers out in its own way brings its own records for them.
"""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import torch

from accelerate.base.messages import warn_once
from accelerate.checkpointing.durable import FileFact, Sink
from accelerate.checkpointing.layout import (
    custom_name,
    optimizer_name,
    optimizer_names,
    scheduler_name,
)
from accelerate.checkpointing.objects import (
    unsafe_globals,
    write_object,
)
from accelerate.checkpointing.optimizer_states import (
    by_number,
    flat_names,
    names_by_identity,
    names_of_groups,
    parameters_of,
    unknown_names,
)
from accelerate.checkpointing.problems import shape_of, shortened, unreadable
from accelerate.checkpointing.source import Source
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
                if shape_of(mine) is not None and shape_of(mine) != shape_of(value):
                    others.append(f"{key} of parameter {number} (saved: {shape_of(value)}, here: {shape_of(mine)})")
        return [f"{self.name} has another shape for {shortened(others)}"] if others else []


def optimizer_records(optimizers: Sequence[Any], models: Sequence[torch.nn.Module]) -> list[Record]:
    """Return the records of optimizers in order; `models` gives their parameters names."""
    names = names_by_identity(models)
    return [
        OptimizerRecord(index, optimizer, names_of_groups(optimizer, names))
        for index, optimizer in enumerate(optimizers)
    ]


def scheduler_records(schedulers: Sequence[Any]) -> list[Record]:
    """Return the records of schedulers in order."""
    return [SchedulerRecord(scheduler_name(index), scheduler) for index, scheduler in enumerate(schedulers)]


def custom_records(objects: Sequence[Any]) -> list[Record]:
    """Return the records of registered objects in order."""
    return [CustomRecord(custom_name(index), each) for index, each in enumerate(objects)]
