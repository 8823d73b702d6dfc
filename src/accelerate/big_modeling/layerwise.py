"""Store the weights of layers in a smaller dtype than they are computed with."""

from __future__ import annotations

import re
from collections.abc import Iterable

import torch

from accelerate.base import constants
from accelerate.hooks import LayerwiseCastingHook, add_hook_to_module


def attach_layerwise_casting_hooks(
    module: torch.nn.Module,
    storage_dtype: torch.dtype,
    compute_dtype: torch.dtype,
    skip_modules_pattern: str | Iterable[str] | None = None,
    skip_modules_classes: type[torch.nn.Module] | tuple[type[torch.nn.Module], ...] | None = None,
    non_blocking: bool = False,
) -> None:
    """Have the linear and convolution layers of a model stored as one dtype and computed as another.

    Args:
        module: the model, or one such layer.
        storage_dtype: between forwards, such as `torch.float8_e4m3fn`.
        compute_dtype: during the forward, such as `torch.bfloat16`.
        skip_modules_pattern: regular expressions; modules with one in their name stay as they are, with all in them.
        skip_modules_classes: modules of these classes stay as they are, with all in them.
        non_blocking: let the conversion overlap with work on the host.
    """
    patterns = [skip_modules_pattern] if isinstance(skip_modules_pattern, str) else skip_modules_pattern or ()
    compiled = [re.compile(pattern) for pattern in patterns]
    layers = constants.SUPPORTED_PYTORCH_LAYERS_FOR_UPCASTING

    def attach(name: str, each: torch.nn.Module) -> None:
        if any(pattern.search(name) for pattern in compiled) or isinstance(each, skip_modules_classes or ()):
            return
        if isinstance(each, layers):
            add_hook_to_module(each, LayerwiseCastingHook(storage_dtype, compute_dtype, non_blocking), append=True)
            return
        for key, child in each.named_children():
            attach(f"{name}.{key}" if name else key, child)

    attach("", module)
