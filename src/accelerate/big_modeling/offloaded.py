"""The weights of a model that has been offloaded, as one mapping: those in memory, and those in files."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch

from accelerate.base.messages import message
from accelerate.big_modeling.engine import Engine
from accelerate.big_modeling.settings import OffloadSettings
from accelerate.big_modeling.spans import Span
from accelerate.big_modeling.store import Index, Stored, read_index


class OffloadedWeightsLoader(Mapping[str, Any]):
    """Offloaded weights by name; what is in memory goes before what is in a file.

    Args:
        state_dict: weights in memory.
        save_folder: an offload folder; its index is read unless `index` is given.
        index: where weights are in files, see `store`.
        device: where weights from files go; by default they stay on the CPU.
        settings: how weights are brought to where modules run.

    Raises:
        ValueError: there are no weights at all.
    """

    def __init__(
        self,
        state_dict: Mapping[str, torch.Tensor] | None = None,
        save_folder: str | os.PathLike[str] | None = None,
        index: Index | None = None,
        device: torch.device | str | int | None = None,
        *,
        settings: OffloadSettings | None = None,
    ) -> None:
        if state_dict is None and save_folder is None and index is None:
            raise ValueError(
                message(
                    given="no weights",
                    why="there would be nothing to load",
                    allowed="a `state_dict`, a `save_folder` with an index, an `index` that names files, or several",
                    do="pass what holds the offloaded weights",
                )
            )
        self.state_dict: Mapping[str, torch.Tensor] = {} if state_dict is None else state_dict
        self.save_folder = save_folder
        if index is None:
            index = {} if save_folder is None else read_index(save_folder)
        self.index = index
        self.device = device
        self.all_keys = [*self.state_dict, *(name for name in index if name not in self.state_dict)]
        self._same: dict[str, str] = {}
        self._resident: dict[str, list[tuple[dict[str, Any], str]]] = {}
        self._stored = Stored(None if save_folder is None else os.fspath(save_folder), index)
        #: Weights that are mapped, each with its entry of the index and the file that this named.
        self.engine = Engine(self, settings or OffloadSettings())
        self._known: dict[str, tuple[Any, Any, torch.Tensor]] = {}

    def __getitem__(self, key: str) -> torch.Tensor:
        key = self._same.get(key, key)
        if key in self.state_dict:
            return self.state_dict[key]
        return self._from_file(key).to(device=self.device, dtype=self._stored.dtype(key))

    def __contains__(self, key: object) -> bool:
        return key in self.state_dict or key in self.index or key in self._same

    def __iter__(self) -> Iterator[str]:
        return iter(self.all_keys)

    def __len__(self) -> int:
        return len(self.all_keys)

    def __deepcopy__(self, memo: dict[int, Any]) -> OffloadedWeightsLoader:
        """Return itself: a copy of a model shares the weights that it has not got itself."""
        return self

    def tie(self, groups: Iterable[Sequence[str]]) -> None:
        """Let the names of each group stand for one weight, the one of them that there is.

        Args:
            groups: names of parameters that are one.
        """
        for group in groups:
            there = next((name for name in group if name in self.state_dict or name in self.index), None)
            if there is not None:
                self._same |= {name: there for name in group if name != there}

    def share(self, name: str, places: list[tuple[dict[str, Any], str]]) -> None:
        """Have a weight taken from a parameter that stays on a device, where it is wanted on that one.

        Args:
            name: the weight.
            places: dictionaries of parameters, each with the key of one that is the same as the weight.
        """
        self._resident[name] = places

    def onload(self, names: tuple[str, ...], device: torch.device) -> Sequence[torch.Tensor]:
        """Return the weights of a module on `device`."""
        if not self._resident or self._resident.keys().isdisjoint(names):
            return self.engine.onload(names, device)
        there = {name: each for name in names if (each := self._resident_on(name, device)) is not None}
        others = tuple(name for name in names if name not in there)
        brought = dict(zip(others, self.engine.onload(others, device), strict=True)) if others else {}
        return [there[name] if name in there else brought[name] for name in names]

    def release(self, names: tuple[str, ...], device: torch.device) -> None:
        """Take note that the forward of a module has ended."""
        if self._resident:
            names = tuple(name for name in names if self._resident_on(name, device) is None)
        self.engine.release(names, device)

    def keeps(self, names: tuple[str, ...]) -> bool:
        """Return whether what is returned for the CPU is in memory anyway, or mapped."""
        return self.engine.is_direct(names)

    def is_static(self, names: tuple[str, ...], device: torch.device) -> bool:
        """Return whether the same tensors are returned each time, at no cost."""
        return not self._resident and self.engine.is_static(names, device)

    def on_host(self, name: str) -> torch.Tensor:
        """Return a weight on the CPU, as it is in memory or in its file."""
        name = self._same.get(name, name)
        weight = self.state_dict.get(name)
        return self._from_file(name) if weight is None else weight

    def span(self, name: str) -> Span | None:
        """Return where a weight is in a file; None if it is in memory."""
        name = self._same.get(name, name)
        return None if name in self.state_dict else self._stored.span(name)

    def dtype(self, name: str) -> torch.dtype:
        """Return what a weight is to be converted to."""
        name = self._same.get(name, name)
        return self.state_dict[name].dtype if name in self.state_dict else self._stored.dtype(name)

    def _resident_on(self, name: str, device: torch.device) -> torch.Tensor | None:
        """Return the parameter on `device` that a weight is tied to, if there is one."""
        for store, key in self._resident.get(name, ()):
            if store[key].device == device:
                tensor: torch.Tensor = store[key]
                return tensor
        return None

    def _from_file(self, name: str) -> torch.Tensor:
        """Return a weight as it is in its file, mapped; it is kept, since that costs no memory."""
        entry = self.index[name]
        file = entry.get("safetensors_file")
        known = self._known.get(name)
        if known is not None and known[0] is entry and known[1] == file:
            return known[2]
        weight = self._stored.view(name)
        self._known[name] = (entry, file, weight)
        return weight


def extract_submodules_state_dict(state_dict: Mapping[str, Any], submodule_names: Sequence[str]) -> dict[str, Any]:
    """Return the part of a state dict that belongs to some modules, or is named itself.

    Args:
        state_dict: weights by full name.
        submodule_names: names of modules, or of weights.
    """
    prefixes = tuple(f"{name}." for name in submodule_names)
    return {name: weight for name, weight in state_dict.items() if name in submodule_names or name.startswith(prefixes)}
