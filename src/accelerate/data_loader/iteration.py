"""What a pass over a loader says of itself: whether it ends, and which samples of its last step are real."""

from __future__ import annotations

from typing import Any

from accelerate.data_loader.dealing import Tail
from accelerate.state.gradient import GradientState, Iteration


class Pass(Iteration):
    """One pass over one of our loaders.

    Args:
        loader: the loader.
        remainder: what is expected of the last step; see `Iteration`.
        ragged: whether ranks may hold batches of different sizes in any step.

    `tail` says what is real in the step of the latest batch; it is None where everything is.
    """

    def __init__(self, loader: object, remainder: int = -1, ragged: bool = False) -> None:
        super().__init__(loader)
        self.remainder = remainder
        self.ragged = ragged
        self.tail: Tail | None = None


class DataLoaderStateMixin:
    """Tells `GradientState` about a loader; for loaders of other people, which call `begin` and `end` around a pass.

    Needs `gradient_state`, and uses `dataset`, `total_batch_size` and `_drop_last` where they are there.
    """

    end_of_dataloader: bool = False
    remainder: int = -1
    gradient_state: GradientState

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls.end_of_dataloader = False
        cls.remainder = -1

    def reset(self) -> None:
        """Forget the facts of the last pass."""
        self.end_of_dataloader = False
        self.remainder = -1

    def begin(self) -> None:
        """Register this loader as the active one, with what can be known of its last batch."""
        self.reset()
        self.remainder = self._expected_remainder()
        self.gradient_state._add_dataloader(self)

    def end(self) -> None:
        """Take the registration back."""
        self.gradient_state._remove_dataloader(self)

    def _expected_remainder(self) -> int:
        """Return how many samples of the last global batch will be real; 0: all, -1: unknown."""
        if getattr(self, "_drop_last", False):
            return -1
        dataset, per_step = getattr(self, "dataset", None), getattr(self, "total_batch_size", None)
        length = getattr(dataset, "total_dataset_length", None) or length_of(dataset)
        return length % per_step if length is not None and per_step else -1


def length_of(data: Any) -> int | None:
    """Return the length of a dataset or sampler, or None where it has none."""
    try:
        return len(data)
    except (TypeError, NotImplementedError):
        return None
