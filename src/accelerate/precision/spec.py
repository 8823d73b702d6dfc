"""What a precision is, as facts that every strategy can translate into its own terms.

A strategy never asks for the name of a precision: FSDP reads `compute` and `reduce` into its `MixedPrecision`,
DeepSpeed into sections of its configuration, and the scaler exists where `needs_scaler` says so.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class PrecisionSpec:
    """The number formats of training; a dtype of None means "whatever the tensors have".

    Args:
        name: what `mixed_precision=` calls it.
        param: dtype in which parameters are kept and updated.
        compute: dtype of matrix products and convolutions.
        reduce: dtype in which a sharded strategy exchanges gradients.
        output: dtype to which half-precision outputs of a model are converted.
        needs_scaler: small gradients would vanish in `compute`, so the loss has to be scaled.
        recipe: the recipe of an 8- or 4-bit format, None for the others.
    """

    name: str
    param: torch.dtype | None = None
    compute: torch.dtype | None = None
    reduce: torch.dtype | None = None
    output: torch.dtype | None = None
    needs_scaler: bool = False
    recipe: str | None = None
