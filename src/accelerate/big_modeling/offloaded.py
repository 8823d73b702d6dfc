"""The weights of a model that has been offloaded, as one mapping: those in memory, and those in files."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch

from accelerate.base.messages import message
from accelerate.big_modeling.store import Index, Stored, read_index


class OffloadedWeightsLoader(Mapping[str, Any]):
    """Offloaded weights by name; what is in memory goes before what is in a file.

    Args:
        state_dict: weights in memory.
        save_folder: an offload folder; its index is read unless `index` is given.
        index: where weights are in files, see `store`.
        device: where weights from files go; by default they stay on the CPU.

    Raises:
        ValueError: there are no weights at all.
    """

    #: What it returns for the CPU is in memory, or mapped and kept; see `WeightSource`.
    keeps = True

    def __init__(
        self,
        state_dict: Mapping[str, torch.Tensor] | None = None,
        save_folder: str | os.PathLike[str] | None = None,
        index: Index | None = None,
        device: torch.device | str | int | None = None,
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
        self._known: dict[str, tuple[Any, Any, torch.Tensor]] = {}

    def __getitem__(self, key: str) -> torch.Tensor:
        key = self._same.get(key, key)
        if key in self.state_dict:
            return self.state_dict[key]
        weight = self._from_file(key)
        return weight if self.device is None else weight.to(self.device)

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
        """Return weights on `device`."""
        return [self._on(name, device) for name in names]

    def release(self, names: tuple[str, ...], device: torch.device) -> None:
        """Take note that weights have been used; nothing was made for them."""

    def _on(self, name: str, device: torch.device) -> torch.Tensor:
        for store, key in self._resident.get(name, ()):
            if store[key].device == device:
                return store[key]
        name = self._same.get(name, name)
        weight = self.state_dict.get(name)
        return (self._from_file(name) if weight is None else weight).to(device)

    def _from_file(self, name: str) -> torch.Tensor:
        """Return a weight on the CPU; one that is mapped is kept, since that costs no memory."""
        entry = self.index[name]
        file = entry.get("safetensors_file")
        known = self._known.get(name)
        if known is not None and known[0] is entry and known[1] == file:
            return known[2]
        weight = self._stored.view(name)
        if weight.dtype == self._stored.span(name).dtype:
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
