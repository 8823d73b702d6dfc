"""Where the weights of offloaded modules are: a mapping from names to tensors, seen from one module.

A hook asks for the weights of its module by their names there. :class:`PrefixedDataset` turns these into the names of
the whole model. What holds the weights of the whole model can offer more than a mapping (:class:`WeightSource`): to
bring the weights to a device itself, so that it can read ahead.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import torch

from accelerate.hooks.placement import Shared, TiedTensors


@runtime_checkable
class WeightSource(Protocol):
    """What holds the weights of a model and knows how to bring them to a device, ahead of time if it can."""

    def keeps(self, names: tuple[str, ...]) -> bool:
        """Return whether it keeps what it returns for the CPU, so that another reference to it costs no memory."""
        ...

    def is_static(self, names: tuple[str, ...], device: torch.device) -> bool:
        """Return whether it returns the same tensors each time, and need not be asked again."""
        ...

    def onload(self, names: tuple[str, ...], device: torch.device) -> Sequence[torch.Tensor]:
        """Return the weights `names`, which are used together, on `device`."""
        ...

    def release(self, names: tuple[str, ...], device: torch.device) -> None:
        """Take note that the weights `names` on `device` have been used."""
        ...


class PrefixedDataset(Mapping[str, Any]):
    """A mapping seen from one module: `view["weight"]` is `dataset[prefix + "weight"]`.

    Args:
        dataset: the mapping of the whole model.
        prefix: what the names of the module start with, the dot included.
    """

    def __init__(self, dataset: Mapping[str, Any], prefix: str) -> None:
        self.dataset = dataset
        self.prefix = prefix

    def __getitem__(self, key: str) -> Any:
        return self.dataset[f"{self.prefix}{key}"]

    def __iter__(self) -> Iterator[str]:
        start = len(self.prefix)
        return (key[start:] for key in self.dataset if key.startswith(self.prefix))

    def __len__(self) -> int:
        return sum(1 for _ in self)


class MappedWeights:
    """The weights of one module, from a mapping: each is moved when it is asked for.

    Args:
        mapping: from the names in the module to tensors.
        names: the weights of the module.
    """

    def __init__(self, mapping: Mapping[str, Any], names: tuple[str, ...]) -> None:
        self.mapping = mapping
        self.names = names
        #: Whether another reference to a weight on the CPU costs no memory, since the mapping has it anyway.
        self.keeps = isinstance(getattr(mapping, "dataset", mapping), dict)

    def onload(
        self, device: torch.device | None, tied: TiedTensors | None, added: set[Shared]
    ) -> Sequence[torch.Tensor]:
        """Return the weights on `device`, or where they are.

        Args:
            device: where to.
            tied: for each storage that several names share, where it is already; one in it is not moved again.
            added: what is entered into `tied` by this call.
        """
        values = [self.mapping[name] for name in self.names]
        if device is None:
            return values
        if not tied:
            return [value.to(device) for value in values]
        return [self._shared(value, device, tied, added) for value in values]

    def _shared(self, value: torch.Tensor, device: torch.device, tied: TiedTensors, added: set[Shared]) -> torch.Tensor:
        pointer = value.data_ptr()
        places = tied.get(pointer)
        if places is None:
            return value.to(device)
        if device not in places:
            places[device] = value.to(device)
            added.add((pointer, device))
        return places[device]

    def is_static(self, device: torch.device | None) -> bool:
        """Return False: what a mapping has can be replaced."""
        return False

    def release(self, device: torch.device | None) -> None:
        """Do nothing: what was moved goes with the last reference to it."""


class SourcedWeights:
    """The weights of one module, from a source that brings them itself, and knows which are tied.

    Args:
        mapping: a view of the source.
        source: what holds the weights of the model.
        names: the weights of the module.
    """

    def __init__(self, mapping: PrefixedDataset, source: WeightSource, names: tuple[str, ...]) -> None:
        self.mapping = mapping
        self.source = source
        self.names = tuple(f"{mapping.prefix}{name}" for name in names)
        self.keeps = source.keeps(self.names)

    def onload(
        self, device: torch.device | None, tied: TiedTensors | None, added: set[Shared]
    ) -> Sequence[torch.Tensor]:
        """Return the weights on `device`, by default on the CPU."""
        return self.source.onload(self.names, device or _CPU)

    def is_static(self, device: torch.device | None) -> bool:
        """Return whether the source returns the same tensors each time, and need not be asked again."""
        return self.source.is_static(self.names, device or _CPU)

    def release(self, device: torch.device | None) -> None:
        """Tell the source that the weights have been used."""
        self.source.release(self.names, device or _CPU)


def weights_of(mapping: Mapping[str, Any], names: tuple[str, ...]) -> MappedWeights | SourcedWeights:
    """Return the weights `names` of a module, out of the mapping that its hook was given."""
    if isinstance(mapping, PrefixedDataset) and isinstance(mapping.dataset, WeightSource):
        return SourcedWeights(mapping, mapping.dataset, names)
    return MappedWeights(mapping, names)


_CPU = torch.device("cpu")
