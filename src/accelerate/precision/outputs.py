"""Half-precision results back to fp32, in any nesting.

A loss computed outside the model in fp16 would overflow, so by default a prepared model hands out fp32, as users of
mixed precision expect; everything that isn't fp16 or bf16 passes untouched.
"""

from __future__ import annotations

import functools
import pickle
from collections.abc import Callable
from typing import Any, NoReturn

import torch

from accelerate.base.messages import message
from accelerate.comm.tree import convert_to_fp32

HALF = frozenset({torch.float16, torch.bfloat16})


def to_fp32(output: Any) -> Any:
    """Return `output` with its fp16 and bf16 tensors as fp32; what models return most is looked for first."""
    if isinstance(output, torch.Tensor):
        return output.float() if output.dtype in HALF else output
    kind = type(output)
    if kind is tuple:
        return tuple([to_fp32(each) for each in output])
    if kind is dict:
        return {name: to_fp32(each) for name, each in output.items()}
    return convert_to_fp32(output)


def unchanged(output: Any) -> Any:
    """Return `output`; stands in for the conversion where outputs keep their dtype."""
    return output


class ConvertOutputsToFp32:
    """A forward function whose half-precision outputs are converted to fp32.

    Args:
        model_forward: the function; found again under `__wrapped__`.
    """

    def __init__(self, model_forward: Callable[..., Any]) -> None:
        self.model_forward = model_forward
        functools.update_wrapper(self, model_forward)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return to_fp32(self.model_forward(*args, **kwargs))

    def __getstate__(self) -> NoReturn:
        raise pickle.PicklingError(
            message(
                given="a forward function that converts its outputs to fp32",
                why="it belongs to one prepared model and is no part of it",
                allowed="pickling the model, prepared or not; the copy has the forward of its class",
                do="pickle the model itself, or `accelerator.unwrap_model(model, keep_fp32_wrapper=False)`",
            )
        )


def convert_outputs_to_fp32(model_forward: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that calls `model_forward` and converts its half-precision outputs to fp32."""
    converting = ConvertOutputsToFp32(model_forward)

    @functools.wraps(model_forward)
    def forward(*args: Any, **kwargs: Any) -> Any:
        return converting(*args, **kwargs)

    forward.__wrapped__ = converting
    return forward
