"""What a model is called with and returns, as a pipeline needs it: flat tensors that can be cut by the sample.

An example says which of the inputs are tensors, which of these have a row for each sample, and what everything else
is. The outputs are learnt while the model is traced.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree

from accelerate.base.messages import message
from accelerate.comm.tree import send_to_device


class ExampleInputs:
    """What a model is called with, taken from an example: which of it is tensors, which of these go by the sample."""

    def __init__(self, args: tuple[Any, ...], kwargs: dict[str, Any], batch: int) -> None:
        self.example, self.structure = pytree.tree_flatten((args, kwargs))
        self.is_tensor = [isinstance(each, torch.Tensor) for each in self.example]
        self.by_sample = [isinstance(each, torch.Tensor) and each.shape[:1] == (batch,) for each in self.example]

    def refusal(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
        """Return why other inputs won't do; empty when they do."""
        found, structure = pytree.tree_flatten((args, kwargs))
        if structure != self.structure:
            return _other_inputs(f"arguments laid out as {structure}", f"they were {self.structure} in the example")
        sizes = {each.shape[0] for each, cut in zip(found, self.by_sample, strict=True) if cut and _has_rows(each)}
        if len(sizes) != 1:
            return _other_inputs(f"batches of {sorted(sizes)} samples", "all inputs have the same samples")
        for mine, wanted, cut in zip(found, self.example, self.by_sample, strict=True):
            if not _same_kind(mine, wanted, cut):
                return _other_inputs(_described(mine), f"it was {_described(wanted)} in the example")
        return ""

    def batch_of(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
        """Return how many samples there are."""
        found = pytree.tree_leaves((args, kwargs))
        return next(int(each.shape[0]) for each, cut in zip(found, self.by_sample, strict=True) if cut)

    def pieces(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], batch: int, piece: int, device: torch.device
    ) -> tuple[torch.Tensor, ...]:
        """Return the tensors of `batch` samples, so that each has the same number of rows for every piece."""
        count = -(-batch // piece)
        leaves = zip(pytree.tree_leaves((args, kwargs)), self.is_tensor, self.by_sample, strict=True)
        tensors = [(send_to_device(each, device), cut) for each, is_tensor, cut in leaves if is_tensor]
        return tuple(
            _filled(each[:batch], count * piece) if cut else each.expand(count, *each.shape) for each, cut in tensors
        )

    def build(self, tensors: Sequence[torch.Tensor]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return arguments as in the example, with the tensors of one piece."""
        rest = iter(tensors)
        leaves = [
            (next(rest).clone() if cut else next(rest)[0]) if is_tensor else each
            for each, is_tensor, cut in zip(self.example, self.is_tensor, self.by_sample, strict=True)
        ]
        args, kwargs = pytree.tree_unflatten(leaves, self.structure)
        return args, kwargs


class KnownOutputs:
    """What a model returns, learnt while it is traced."""

    def __init__(self) -> None:
        self.leaves: list[Any] = []
        self.structure: Any = None
        #: For each tensor the shape of what belongs to one sample, and the dtype.
        self.rows: list[tuple[tuple[int, ...], torch.dtype]] = []
        self._sizes: list[tuple[int, ...]] = []

    def take(self, output: Any) -> tuple[torch.Tensor, ...]:
        """Remember the structure of an output, and return its tensors."""
        found, self.structure = pytree.tree_flatten(output)
        tensors = tuple(each for each in found if isinstance(each, torch.Tensor))
        self.leaves = [None if isinstance(each, torch.Tensor) else (each,) for each in found]
        self.rows = [(tuple(each.shape[1:]), each.dtype) for each in tensors]
        self._sizes = [tuple(each.shape[:1]) for each in tensors]
        return tensors

    def check(self, piece: int) -> None:
        """Refuse outputs that can't be put together again.

        Raises:
            ValueError: some tensor has no row for each sample.
        """
        if not self._sizes or any(size != (piece,) for size in self._sizes):
            raise ValueError(
                message(
                    given=f"a model that returns tensors with {self._sizes} rows for {piece} samples",
                    why="the outputs of pieces are put together row by row",
                    allowed="outputs with a row for each sample",
                    do="leave out what is summed over the batch, such as a loss: call the model without labels",
                )
            )

    def build(self, rows: Sequence[torch.Tensor]) -> Any:
        """Return an output with these tensors in it."""
        rest = iter(rows)
        leaves = [next(rest) if each is None else each[0] for each in self.leaves]
        return pytree.tree_unflatten(leaves, self.structure)


class FlatModel(torch.nn.Module):
    """A model as a function of tensors.

    Inputs are copied before it and outputs after it, so that each is of the first part, or of the last.
    """

    def __init__(self, model: torch.nn.Module, inputs: ExampleInputs) -> None:
        super().__init__()
        self.model = model
        self.inputs = inputs
        self.outputs = KnownOutputs()

    def forward(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        args, kwargs = self.inputs.build(tensors)
        return tuple(each.clone() for each in self.outputs.take(self.model(*args, **kwargs)))


def _has_rows(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.dim() > 0 and value.shape[0] > 0


def _same_kind(mine: Any, wanted: Any, by_sample: bool) -> bool:
    """Whether an input is as in the example, but for the number of samples."""
    if not isinstance(wanted, torch.Tensor):
        return bool(mine == wanted)
    if not isinstance(mine, torch.Tensor) or mine.dtype != wanted.dtype:
        return False
    return mine.shape[1:] == wanted.shape[1:] if by_sample else mine.shape == wanted.shape


def _described(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"a tensor of shape {tuple(value.shape)} and dtype {value.dtype}"
    return repr(value)


def _filled(tensor: torch.Tensor, rows: int) -> torch.Tensor:
    """Return a tensor with more rows, all like its last."""
    lacking = rows - tensor.shape[0]
    return torch.cat([tensor, tensor[-1:].expand(lacking, *tensor.shape[1:])]) if lacking else tensor


def _other_inputs(given: str, why: str) -> str:
    return message(
        given=given,
        why=f"the parts of a pipeline are made for what the example had; {why}",
        allowed="inputs as in `example_args` and `example_kwargs`, of any number of samples",
        do="pad to the length of the example, or prepare the model with another one",
    )
