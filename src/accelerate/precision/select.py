"""Which precision a run uses: decided once, by name, when the `Accelerator` is built.

A precision is a file and a line in `PRECISIONS`, or an entry point of the group `accelerate.precisions` in another
package.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from accelerate.base.messages import message, warn_once
from accelerate.base.registry import Registry
from accelerate.precision.base import Precision, PrecisionOptions

if TYPE_CHECKING:
    from accelerate.config.autocast import AutocastKwargs
    from accelerate.config.scaler import GradScalerKwargs
    from accelerate.devices.device import Device

PRECISIONS: Registry[type[Precision]] = Registry("precisions")
PRECISIONS.register("no", "accelerate.precision.base:Precision")
PRECISIONS.register("bf16", "accelerate.precision.native:Bf16")
PRECISIONS.register("fp16", "accelerate.precision.native:Fp16")


def select_precision(
    name: str,
    device: Device | torch.device,
    *,
    scaler_handler: GradScalerKwargs | None = None,
    autocast_handler: AutocastKwargs | None = None,
    keep_output_dtype: bool = False,
) -> Precision:
    """Return the precision called `name`, for models on `device`.

    Args:
        name: "no", "fp16", "bf16", or what another package registered.
        device: where models run.
        scaler_handler: settings of the gradient scaler of fp16.
        autocast_handler: settings of `torch.autocast`.
        keep_output_dtype: leave the outputs of models in the dtype they were computed in.

    Raises:
        ValueError: an unknown name, a precision the device can't compute in, or fp8, which has no recipe yet.
    """
    if name == "fp8" and name not in PRECISIONS:
        raise ValueError(_no_fp8())
    options = PrecisionOptions(autocast_handler, scaler_handler, keep_output_dtype)
    torch_device = device if isinstance(device, torch.device) else device.torch_device
    precision = PRECISIONS.get(str(name))(torch_device, options)
    _warn_of_options_without_effect(precision)
    return precision


def _warn_of_options_without_effect(precision: Precision) -> None:
    """Say once which options were given that this precision has no use for."""
    options, spec = precision.options, precision.spec
    unused = {
        "AutocastKwargs": options.autocast is not None and spec.compute is None,
        "GradScalerKwargs": options.scaler is not None and not spec.needs_scaler,
        "keep_output_dtype": options.keep_output_dtype and spec.compute is None,
    }
    for option in (option for option, is_unused in unused.items() if is_unused):
        warn_once(f"{option} has no effect with mixed_precision={spec.name!r}.", stacklevel=5)


def _no_fp8() -> str:
    return message(
        given="mixed_precision='fp8'",
        why="this version has none of the fp8 recipes (torchao, Transformer Engine, MS-AMP)",
        allowed=f"one of {', '.join(PRECISIONS.names())}",
        do="use mixed_precision='bf16', or install a package with an entry point 'fp8' in 'accelerate.precisions'",
    )
