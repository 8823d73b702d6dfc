"""How nested data comes apart and is put together again, one rule per kind of container.

A rule keeps the container it was given: a `defaultdict` its factory, a `Mapping` subclass its attributes, a dataclass
(frozen or not) what is not a field. The container itself is never changed; a copy is. Types registered with torch's
pytree (`torch.utils._pytree.register_pytree_node`) follow the rule registered for them. Whatever has no rule is a leaf.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Iterable, Mapping, MutableMapping
from typing import Any

import torch
from torch.utils import _pytree


@dataclasses.dataclass(frozen=True)
class Container:
    """The rule of one kind of container.

    Args:
        values: what lies in it, in a fixed order.
        labels: how a path names each of them: `['key']`, `[0]`, `.field`.
        rebuild: a container of the same kind with other values, in that order.
    """

    values: Callable[[Any], Iterable[Any]]
    labels: Callable[[Any], Iterable[str]]
    rebuild: Callable[[Any, list[Any]], Any]


def container_of(value: Any) -> Container | None:
    """Return the rule for `value`, or None when it is a leaf."""
    kind = type(value)
    found = _RULES.get(kind, _UNKNOWN)
    if found is not _UNKNOWN:
        return found
    found = _find(kind)
    if found is not None:  # a leaf today may be registered with pytree tomorrow
        _RULES[kind] = found
    return found


def is_namedtuple(data: Any) -> bool:
    """Tell whether `data` is an instance of a named tuple (of the `collections` or `typing` kind)."""
    return isinstance(data, tuple) and hasattr(data, "_asdict") and hasattr(data, "_fields")


def honor_type(obj: Any, generator: Iterable[Any]) -> Any:
    """Return a list, tuple or named tuple of the type of `obj` made of the items of `generator`."""
    if is_namedtuple(obj):
        return type(obj)(*generator)
    return type(obj)(generator)


def _find(kind: type) -> Container | None:
    if issubclass(kind, torch.Tensor):
        return None
    if kind in _pytree.SUPPORTED_NODES:
        return _registered(_pytree.SUPPORTED_NODES[kind])
    if issubclass(kind, Mapping):
        return Container(lambda data: data.values(), _keys, _remapped)
    if issubclass(kind, tuple):
        named = hasattr(kind, "_asdict") and hasattr(kind, "_fields")
        return Container(iter, (lambda data: [f".{name}" for name in data._fields]) if named else _indices, honor_type)
    if issubclass(kind, list):
        return Container(iter, _indices, _relisted)
    if dataclasses.is_dataclass(kind):
        return Container(_field_values, lambda data: [f".{name}" for name in _field_names(data)], _refielded)
    return None


def _registered(node: Any) -> Container:
    def labels(data: Any) -> list[str]:
        if node.flatten_with_keys_fn is None:
            return [f"[{index}]" for index, _ in enumerate(node.flatten_fn(data)[0])]
        return [str(key) for key, _ in node.flatten_with_keys_fn(data)[0]]

    return Container(
        values=lambda data: node.flatten_fn(data)[0],
        labels=labels,
        rebuild=lambda data, values: node.unflatten_fn(values, node.flatten_fn(data)[1]),
    )


def _keys(data: Mapping[Any, Any]) -> list[str]:
    return [f"[{key!r}]" for key in data.keys()]  # noqa: SIM118  (some iterate over something else)


def _indices(data: Any) -> list[str]:
    return [f"[{index}]" for index in range(len(data))]


def _remapped(data: Mapping[Any, Any], values: list[Any]) -> Any:
    keys = list(data.keys())
    if not isinstance(data, MutableMapping):
        return type(data)(dict(zip(keys, values, strict=True)))  # type: ignore[call-arg]  # as every immutable mapping is made
    new = copy.copy(data)
    for key, value in zip(keys, values, strict=True):
        new[key] = value
    return new


def _relisted(data: list[Any], values: list[Any]) -> list[Any]:
    new = copy.copy(data)
    new[:] = values
    return new


def _field_names(data: Any) -> list[str]:
    return [field.name for field in dataclasses.fields(data) if hasattr(data, field.name)]


def _field_values(data: Any) -> list[Any]:
    return [getattr(data, name) for name in _field_names(data)]


def _refielded(data: Any, values: list[Any]) -> Any:
    """Copy a dataclass with other field values, without running its `__init__`; one with nothing new stays itself."""
    names = _field_names(data)
    if all(value is getattr(data, name) for name, value in zip(names, values, strict=True)):
        return data
    new = copy.copy(data)
    for name, value in zip(names, values, strict=True):
        object.__setattr__(new, name, value)  # also where the dataclass is frozen
    return new


_UNKNOWN: Any = object()
_RULES: dict[type, Container | None] = {
    dict: Container(lambda data: data.values(), _keys, lambda data, values: dict(zip(data, values, strict=True))),
    list: Container(iter, _indices, lambda data, values: list(values)),
    tuple: Container(iter, _indices, lambda data, values: tuple(values)),
    **dict.fromkeys((torch.Tensor, torch.nn.Parameter, str, bytes, int, float, bool, type(None))),
}
