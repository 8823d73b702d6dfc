"""The 16-bit precisions of torch itself: autocast in bfloat16, and in float16 with loss scaling."""

from __future__ import annotations

import dataclasses
import warnings
from typing import TYPE_CHECKING, final

import torch

from accelerate.base.messages import message
from accelerate.precision.autocast import Autocast
from accelerate.precision.base import Precision, PrecisionOptions
from accelerate.precision.outputs import to_fp32, unchanged
from accelerate.precision.scaler import Scaled
from accelerate.precision.spec import PrecisionSpec

if TYPE_CHECKING:
    from accelerate.config.autocast import AutocastKwargs


class Native(Precision):
    """Autocast in one 16-bit format, whose facts are the class's `spec`."""

    def __init__(self, device: torch.device, options: PrecisionOptions | None = None) -> None:
        super().__init__(device, options)
        self.spec = _with_output(self.spec, self.options)
        self.autocast = _autocast_for(self.spec, device, self.options)

    def prepare_model(self, model: torch.nn.Module, device: object = None, *, autocast: bool = True) -> torch.nn.Module:
        if autocast:
            self.autocast.wrap(model)
        return model

    def forward_context(self, handler: AutocastKwargs | None = None) -> torch.autocast:
        return self.autocast.context(handler)


@final
class Bf16(Native):
    """Matrix products and convolutions in bfloat16, which has the range of fp32 and needs no scaling."""

    spec = PrecisionSpec("bf16", compute=torch.bfloat16, reduce=torch.bfloat16, output=torch.float32)


@final
class Fp16(Native, Scaled):
    """Matrix products and convolutions in float16, with a scaled loss so that small gradients don't vanish."""

    spec = PrecisionSpec("fp16", compute=torch.float16, reduce=torch.float16, output=torch.float32, needs_scaler=True)


def _with_output(spec: PrecisionSpec, options: PrecisionOptions) -> PrecisionSpec:
    """Return `spec` with the output dtype that was asked for."""
    return dataclasses.replace(spec, output=None) if options.keep_output_dtype else spec


def _autocast_for(spec: PrecisionSpec, device: torch.device, options: PrecisionOptions) -> Autocast:
    """Return how to autocast on `device`.

    Raises:
        ValueError: torch can't compute in this dtype there.
    """
    dtype = spec.compute or torch.float32
    reason = why_not(device, dtype)
    if reason is not None:
        raise ValueError(
            message(
                given=f"mixed_precision={spec.name!r} on a device of type {device.type!r}",
                why=reason,
                allowed="mixed_precision='no', or a 16-bit format that the device computes in",
                do="choose another mixed_precision, or run on another device",
            )
        )
    return Autocast(device.type, dtype, options.autocast, unchanged if spec.output is None else to_fp32)


def why_not(device: torch.device, dtype: torch.dtype) -> str | None:
    """Return torch's reason for not computing in `dtype` on `device`, None when it does."""
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("error", category=UserWarning)
            torch.autocast(device.type, dtype=dtype)
    except (RuntimeError, AssertionError, UserWarning) as reason:
        return " ".join(str(reason).split())
    return None
