"""A prepared loader stands in for the `DataLoader` it wraps: same attributes, same class for `isinstance`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.utils.data import DataLoader

from accelerate.data_loader.copies import copy_loader
from accelerate.data_loader.stateful import stateful_loader


class DataLoaderAdapter:
    """Holds a loader of torch (or torchdata) and passes on what it doesn't know itself.

    Args:
        dataset: the dataset of the loader.
        use_stateful_dataloader: build torchdata's `StatefulDataLoader`, which can also restore iterable datasets.
        batch_sampler: yields lists of indices.
        base_dataloader: the loader to wrap, instead of building one from the other arguments.
        **kwargs: what `torch.utils.data.DataLoader` takes.
    """

    def __init__(
        self,
        dataset: Any,
        use_stateful_dataloader: bool = False,
        batch_sampler: Any = None,
        *,
        base_dataloader: DataLoader | None = None,
        **kwargs: Any,
    ) -> None:
        self.use_stateful_dataloader = use_stateful_dataloader
        if base_dataloader is None:
            base_dataloader = DataLoader(dataset, batch_sampler=batch_sampler, **kwargs)
        if use_stateful_dataloader:
            base_dataloader = stateful_loader(base_dataloader)
        self.base_dataloader = base_dataloader

    def __getattr__(self, name: str) -> Any:
        if name == "base_dataloader":  # not there yet: this object is being built or unpickled
            raise AttributeError(name)
        return getattr(self.base_dataloader, name)

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        return type(self.base_dataloader)

    def __len__(self) -> int:
        return len(self.base_dataloader)

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the wrapped loader, which has to be one that has a state."""
        return self.base_dataloader.state_dict()  # type: ignore[attr-defined]

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Give the wrapped loader its state back."""
        self.base_dataloader.load_state_dict(state_dict)  # type: ignore[attr-defined]

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return _restored, (type(self), self._carried())

    def _carried(self) -> dict[str, Any]:
        """Return the attributes that go along in a pickle."""
        return {**self.__dict__, "base_dataloader": copy_loader(self.base_dataloader)}

    def _rejoin(self) -> None:
        """Take up again, in the process where a pickle arrived, what could not travel."""


def _restored(cls: type[DataLoaderAdapter], attributes: dict[str, Any]) -> DataLoaderAdapter:
    """Unpickle a loader."""
    loader = cls.__new__(cls)
    loader.__dict__.update(attributes)
    loader._rejoin()
    return loader
