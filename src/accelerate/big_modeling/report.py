"""How a checkpoint compares with a model: what is missing, unexpected or misshapen, told before anything moves."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from accelerate.base.messages import message
from accelerate.big_modeling.checkpoint_file import CheckpointFile
from accelerate.big_modeling.tied import find_tied_parameters
from accelerate.hooks.placement import BNB_CLASSES
from accelerate.hooks.tensors import all_module_tensors, state_names

logger = logging.getLogger("accelerate.utils.modeling")


@dataclass(frozen=True)
class Report:
    """What does not fit between a checkpoint and a model.

    Args:
        missing: names of the model that the checkpoint hasn't, tied ones that it has under another name aside.
        unexpected: names of the checkpoint that the model hasn't.
        misshaped: names with the shape in the checkpoint and that in the model.
    """

    missing: tuple[str, ...]
    unexpected: tuple[str, ...]
    misshaped: tuple[tuple[str, tuple[int, ...], tuple[int, ...]], ...]

    def check(self, model: str, checkpoint: str, strict: bool) -> None:
        """Refuse tensors of another shape, and with `strict` everything that does not fit; warn about the rest.

        Args:
            model: how the model is called.
            checkpoint: the path.
            strict: whether names have to be the same.

        Raises:
            ValueError: what is refused; all of it is named.
        """
        if self.misshaped or (strict and (self.missing or self.unexpected)):
            raise ValueError(self._refusal(model, checkpoint, strict))
        if self.unexpected:
            logger.warning(
                f"{checkpoint} holds weights that {model} has no place for, and they are left out: "
                f"{', '.join(self.unexpected)}. Pass `strict=True` to make this an error."
            )
        if self.missing:
            logger.warning(
                f"{checkpoint} lacks weights of {model}, which stay as they are: "
                f"{', '.join(self.missing)}. Pass `strict=True` to make this an error."
            )

    def _refusal(self, model: str, checkpoint: str, strict: bool) -> str:
        parts = [f"{name} has shape {found} and should have {wanted}" for name, found, wanted in self.misshaped]
        if strict and self.missing:
            parts.append(f"missing: {', '.join(self.missing)}")
        if strict and self.unexpected:
            parts.append(f"unexpected: {', '.join(self.unexpected)}")
        return message(
            given=f"the checkpoint {checkpoint} for a {model}",
            why="; ".join(parts),
            allowed="the names and shapes of the model" if strict else "the shapes of the model",
            do="build the model with the configuration that the checkpoint was saved with"
            + ("" if self.misshaped else ", or pass `strict=False`"),
        )


def compare(model: torch.nn.Module, files: Sequence[CheckpointFile]) -> Report:
    """Compare a checkpoint with a model; nothing is read but the headers of its files."""
    own = dict(all_module_tensors(model, recurse=True))
    found = {name: file for file in files for name in file.names()}
    tied = [group for group in find_tied_parameters(model) if not found.keys().isdisjoint(group)]
    elsewhere = {name for group in tied for name in group}
    kept = set(state_names(model))
    missing = [name for name in own if name in kept and name not in found and name not in elsewhere]
    misshaped = [
        (name, file.shape(name), tuple(own[name].shape))
        for name, file in found.items()
        if name in own and file.shape(name) != own[name].shape and type(own[name]).__name__ not in BNB_CLASSES
    ]
    return Report(tuple(missing), tuple(name for name in found if name not in own), tuple(misshaped))
