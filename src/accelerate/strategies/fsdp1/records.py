"""How models and optimizers with flat parameters lie in a checkpoint: in the layouts of the second generation.

Shards and whole files are written and read by the records of `fsdp2`. What differs: a state is a copy, taken out of
flat parameters and put back into them, and there is one more layout, in which each rank writes its flat parts as they
are.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.state_dict import (
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.tensor import DTensor, distribute_tensor

from accelerate.base.constants import FSDP_MODEL_NAME
from accelerate.base.messages import message
from accelerate.checkpointing.durable import FileFact
from accelerate.checkpointing.metadata import is_sharded_folder
from accelerate.checkpointing.objects import write_object
from accelerate.checkpointing.optimizer_states import by_name, is_named, unknown_names
from accelerate.checkpointing.problems import unreadable
from accelerate.checkpointing.sharded import empty, read_shards
from accelerate.checkpointing.source import Source
from accelerate.comm.collectives import Collectives
from accelerate.strategies.fsdp1.flat import units_in
from accelerate.strategies.fsdp2.files import fill, rank_file
from accelerate.strategies.fsdp2.records import ShardedModelRecord, ShardedOptimizerRecord, WholeModelRecord
from accelerate.strategies.fsdp2.states import whole


def state_of(root: torch.nn.Module) -> dict[str, Any]:
    """Return the state of a wrapped model under the names of the bare one: a copy, of which each rank has its part."""
    return get_model_state_dict(root)


def load_whole(root: torch.nn.Module, state: Mapping[str, Any], strict: bool = True) -> None:
    """Put a whole state that every rank has into a wrapped model; names that are missing keep their values."""
    own = state_of(root)
    if strict:
        refuse_other_names(state, own)
    fill(own, state)
    set_model_state_dict(root, own)


@torch.no_grad()
def load_of_main(
    root: torch.nn.Module, state: Mapping[str, Any], collectives: Collectives, strict: bool = True
) -> None:
    """Put the whole state that rank 0 has into a wrapped model, one tensor at a time."""
    own = state_of(root)
    names = collectives.broadcast_object(list(state))
    if strict:
        refuse_other_names(names, own)
    for name in names:
        target = own.get(name)
        if isinstance(target, DTensor):
            device = target.to_local().device
            value = state[name] if collectives.rank == 0 else torch.empty(target.shape, dtype=target.dtype)
            value = value.to(device, target.dtype)
            target.copy_(distribute_tensor(value, target.device_mesh, target.placements))
        elif isinstance(target, torch.Tensor):
            if collectives.rank == 0:
                target.copy_(state[name])
            collectives.broadcast(target)
    set_model_state_dict(root, own)


def refuse_other_names(names: Iterable[str], own: Mapping[str, Any]) -> None:
    """Refuse a state with other names than a model's.

    Raises:
        RuntimeError: it has some besides, or lacks some.
    """
    unknown, missing = set(names) - set(own), set(own) - set(names)
    if unknown or missing:
        raise RuntimeError(
            message(
                given="a state of another model",
                why=f"it has {sorted(unknown)} besides, and lacks {sorted(missing)}",
                allowed="the names of the bare model's parameters and buffers",
                do="load the state of the same model, or pass strict=False",
            )
        )


class FlatModelRecord(ShardedModelRecord):
    """A model of flat parameters, written by shard.

    Args:
        root: the wrapped model; None where it is only written.
        whole_state: the state of the model, where `weights` are only some of its tensors, under other names.
    """

    def __init__(
        self,
        index: int,
        weights: Mapping[str, Any],
        load: Callable[..., Any] | None,
        root: Any,
        whole_state: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(index, weights, load)
        self.root, self.whole_state = root, weights if whole_state is None else whole_state

    def restore(self, source: Source) -> None:
        super().restore(source)
        _put_back(self, source)


class WholeFlatModelRecord(WholeModelRecord):
    """A model of flat parameters, written as a whole by the main process."""

    def __init__(
        self, index: int, weights: Mapping[str, Any], load: Callable[..., Any] | None, root: Any, keep: bool
    ) -> None:
        super().__init__(index, weights, load, lambda: whole(weights, keep))
        self.root, self.whole_state = root, weights

    def restore(self, source: Source) -> None:
        super().restore(source)
        _put_back(self, source)


def _put_back(record: Any, source: Source) -> None:
    """Put what was read into the copy of a state into the flat parameters; whole files have gone there already."""
    name = record.file(source)
    if name is not None and is_sharded_folder(source.folder / name):
        set_model_state_dict(record.root, dict(record.whole_state))


class LocalModelRecord(FlatModelRecord):
    """A model whose flat parts each rank writes as they are, for as many ranks and the same units."""

    def __init__(
        self, index: int, weights: Mapping[str, Any], load: Callable[..., Any] | None, root: Any, rank: int
    ) -> None:
        super().__init__(index, weights, load, root)
        self.local = self.name = rank_file(FSDP_MODEL_NAME, index, rank)

    def state(self) -> Any:
        return parts_of(self.root)

    def save(self, folder: Path, state: Any, collectives: Collectives) -> dict[str, FileFact]:
        return self.save_file(folder, state)

    def write(self, sink: Any, state: Any) -> None:
        write_object(sink, state)

    def check(self, source: Source) -> list[str]:
        if not source.has(self.local):
            return super().check(source)
        problems = unreadable(source, self.local)
        if problems:
            return problems
        saved, own = source.object(self.local), parts_of(self.root)
        same = saved.keys() == own.keys() and all(saved[name].shape == own[name].shape for name in own)
        return [] if same else [f"{self.local} is the part of a rank among others, or of other units"]

    def restore(self, source: Source) -> None:
        if not source.has(self.local):
            super().restore(source)
            return
        with torch.no_grad():
            for name, value in source.object(self.local).items():
                parts_of(self.root)[name].copy_(value)


def parts_of(root: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Return the flat parameters of this rank, and what is not in them, as they are."""
    handles = enumerate(unit._handle for unit in units_in(root))
    flat = {f"{number}._flat_param": handle.flat_param for number, handle in handles if handle is not None}
    inside = {id(each) for one in flat.values() for each in (one, *(one._params or ()))}
    others = (*root.named_parameters(), *root.named_buffers())
    return {name: each.detach() for name, each in flat.items()} | {
        name: each.detach() for name, each in others if id(each) not in inside
    }


class FlatOptimizerRecord(ShardedOptimizerRecord):
    """An optimizer of flat parameters, written by shard, under the names of the bare model's parameters.

    Args:
        root: the wrapped model that it trains.
    """

    def __init__(self, index: int, optimizer: Any, names: list[list[str | None]], root: torch.nn.Module) -> None:
        super().__init__(index, optimizer, names)
        self.root = root
        self.inner = getattr(optimizer, "optimizer", optimizer)

    def state(self) -> Any:
        return self._own()

    def _own(self) -> Any:
        """Return the state of which this rank has its part."""
        with warnings.catch_warnings():  # torch remarks on its own code, at every call
            warnings.filterwarnings("ignore", message=".*_get_pg_default_device|Multiple backends are registered")
            return get_optimizer_state_dict(self.root, self.inner)

    def check(self, source: Source) -> list[str]:
        name = self.file(source)
        problems = self._unreadable(source, name or self.name)
        if name is None or problems:
            return problems
        saved = self._saved(source, name)
        groups, own = [len(each["params"]) for each in saved["param_groups"]], [len(group) for group in self.names]
        if groups != own:
            return [f"{name} has parameter groups of {groups} parameters, the optimizer of {own}"]
        unknown = unknown_names(saved, self.names)
        return [f"{name} holds parameters that the optimizer doesn't: {unknown[0]}"] if unknown else []

    def restore(self, source: Source) -> None:
        name = self.file(source)
        assert name is not None
        own = self._own()
        saved: dict[str, Any]
        if is_sharded_folder(source.folder / name):
            saved = {"state": {}, **read_shards(source.folder / name, _into(own["state"]))["optimizer"]}
        else:
            saved = source.object(name)
            saved = saved if is_named(saved) else by_name(saved, self.names)
        state: Any = {name: _parts(each, own["state"].get(name, {})) for name, each in saved["state"].items()}
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*_get_pg_default_device|Multiple backends are registered")
            set_optimizer_state_dict(self.root, self.inner, {**saved, "state": state})


class WholeFlatOptimizerRecord(FlatOptimizerRecord):
    """An optimizer of flat parameters whose state the main process writes as a whole.

    Args:
        keep: this rank writes it.
    """

    everywhere = False
    collective = True

    def __init__(self, index: int, optimizer: Any, names: list[list[str | None]], root: Any, keep: bool) -> None:
        super().__init__(index, optimizer, names, root)
        self.name, self.keep = self.found_as[0], keep

    def state(self) -> Any:
        state = self._own()
        return {**state, "state": {name: whole(each, self.keep) for name, each in state["state"].items()}}

    def save(self, folder: Path, state: Any, collectives: Collectives) -> dict[str, FileFact]:
        return self.save_file(folder, state)


def _into(own: Mapping[str, Any]) -> Callable[[tuple[Any, ...], Any], Any]:
    """Return what says where each part of a folder is read to: into this rank's part of the state where it has one."""

    def choose(path: tuple[Any, ...], entry: Any) -> Any:
        if path[1] != "state":
            return None
        target = own.get(path[2], {}).get(path[3])
        return target if isinstance(target, DTensor) else empty(entry)

    return choose


def _parts(saved: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """Return the state of one parameter with this rank's parts of what was saved whole."""
    found = {}
    for key, value in saved.items():
        like = own.get(key)
        if isinstance(like, DTensor) and isinstance(value, torch.Tensor) and not isinstance(value, DTensor):
            value = distribute_tensor(value.to(like.to_local().device), like.device_mesh, like.placements)
        found[key] = value
    return found
