"""The places in a module that are filled with weights before its forward and emptied after it.

While a place is empty it holds a placeholder: a tensor of the same class, shape and attributes on meta. Places are
found once, when a hook is put on its module, so that a forward only swaps entries of dictionaries.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from accelerate.hooks.placement import BNB_CLASSES, TiedTensors, placed_quantized, shared_places
from accelerate.hooks.tensors import meta_like, wrapped_like

META = torch.device("meta")


class Slot:
    """One place: the entry `key` of a module's dictionary of parameters or buffers.

    Args:
        store: the dictionary.
        key: the name of the tensor in it.
        name: its name as the weights of the hooked module know it.
    """

    __slots__ = ("key", "live", "name", "placeholder", "source", "store")

    def __init__(self, store: dict[str, Any], key: str, name: str) -> None:
        self.store = store
        self.key = key
        self.name = name
        self.placeholder: torch.Tensor | None = None
        #: The value that was put in last, and what was made of it, if keeping these costs no memory.
        self.source: torch.Tensor | None = None
        self.live: torch.Tensor | None = None

    def vacate(self, tied: TiedTensors | None) -> None:
        """Put a placeholder in the place for the first time; storages that several names share have one in common."""
        current = self.store[self.key]
        shared = shared_places(tied, current)
        if shared is None:
            self._take_placeholder(current)
        else:
            self.placeholder = shared.setdefault(META, meta_like(current))
        self.empty()

    def empty(self) -> None:
        """Put the placeholder in the place, unless the place has gone."""
        if self.key in self.store:
            self.store[self.key] = self.placeholder

    def fill(self, value: torch.Tensor, keep: bool) -> None:
        """Put `value` in the place, of the class, dtype and attributes of the placeholder.

        Args:
            value: the content, on the device where the module runs.
            keep: whether someone else keeps `value` anyway, so that it may be remembered here.
        """
        current = self.store.get(self.key)
        if current is None:
            return
        if current is not self.placeholder and current is not self.live:
            self._take_placeholder(current)
        if value is not self.source or self.live.requires_grad != self.placeholder.requires_grad:  # type: ignore[union-attr]
            live = self._made_of(value)
            same_memory = keep and value.dtype == live.dtype
            self.source, self.live = (value, live) if same_memory else (None, None)
            self.store[self.key] = live
            return
        self.store[self.key] = self.live

    def _take_placeholder(self, current: torch.Tensor) -> None:
        """Let what is in the place, or its like on meta, be the placeholder."""
        self.placeholder = current if current.device.type == "meta" else meta_like(current)
        self.source = self.live = None

    def _made_of(self, value: torch.Tensor) -> torch.Tensor:
        model: Any = self.placeholder
        if type(model).__name__ in BNB_CLASSES:
            return placed_quantized(model, value.device, value)
        data = value if value.dtype == model.dtype else value.detach().to(model.dtype)
        return wrapped_like(data, model) if isinstance(model, torch.nn.Parameter) else data


def refill(slots: Sequence[Slot]) -> bool:
    """Put what was in the places before into them again; return whether it still is what is to be there.

    Args:
        slots: the places, which are empty, and were filled with the same values before.
    """
    records = torch.is_grad_enabled()  # without gradients it doesn't matter who needs them
    for slot in slots:
        store, key, live, placeholder = slot.store, slot.key, slot.live, slot.placeholder
        if live is None or store.get(key) is not placeholder:
            return False
        if records and live.requires_grad != placeholder.requires_grad:  # type: ignore[union-attr]
            return False
        store[key] = live
    return True


def vacate(slots: Sequence[Slot]) -> None:
    """Put the placeholders into the places, but for places that have gone."""
    for slot in slots:
        store, key = slot.store, slot.key
        if key in store:
            store[key] = slot.placeholder


def find_slots(module: torch.nn.Module, *, buffers: bool, recurse: bool) -> list[Slot]:
    """Return the places of a module that are filled before its forward.

    Args:
        module: a module.
        buffers: also those of buffers in the state dict.
        recurse: also those of the modules in it.
    """
    seen: set[tuple[int, str]] = set()
    found = []
    for slot in _all_slots(module, buffers, recurse):
        place = (id(slot.store), slot.key)
        if slot.store[slot.key] is not None and place not in seen:
            seen.add(place)
            found.append(slot)
    return found


def _all_slots(module: torch.nn.Module, buffers: bool, recurse: bool) -> Iterator[Slot]:
    for path, each in module.named_modules() if recurse else [("", module)]:
        prefix = f"{path}." if path else ""
        yield from (Slot(each._parameters, key, prefix + key) for key in each._parameters)
        if buffers:
            kept = (key for key in each._buffers if key not in each._non_persistent_buffers_set)
            yield from (Slot(each._buffers, key, prefix + key) for key in kept)
