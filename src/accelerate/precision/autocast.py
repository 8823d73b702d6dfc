"""The forward pass of a prepared model: autocast around it, half-precision outputs back to fp32.

`AutocastForward` stands in `model.forward`. It is an object rather than a closure, so that a deep copy of the
model gets one that points at the copy, and so that a pickled model carries no trace of it: the copy computes as
its class says.
"""

from __future__ import annotations

import copy
import functools
import types
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from accelerate.precision.outputs import to_fp32

if TYPE_CHECKING:
    from accelerate.config.autocast import AutocastKwargs


#: The attributes of a module in which a forward can be found: in use, or kept below that of a hook.
HOLDERS = ("forward", "_old_forward")


@dataclass(frozen=True)
class Autocast:
    """How to call `torch.autocast` for one precision on one kind of device.

    Args:
        device_type: the kind of device.
        dtype: what eligible operations compute in.
        handler: `enabled` and `cache_enabled`; None is torch's default. Read when a context is made.
        convert: what is done with the outputs of a model.
    """

    device_type: str
    dtype: torch.dtype
    handler: AutocastKwargs | None = None
    convert: Callable[[Any], Any] = to_fp32

    def arguments(self, handler: AutocastKwargs | None = None) -> dict[str, Any]:
        """Return the arguments of `torch.autocast`."""
        chosen = handler or self.handler
        return {
            "device_type": self.device_type,
            "dtype": self.dtype,
            "enabled": True if chosen is None else chosen.enabled,
            "cache_enabled": None if chosen is None else chosen.cache_enabled,
        }

    def context(self, handler: AutocastKwargs | None = None) -> torch.autocast:
        """Return a new autocast context; `handler` replaces the one this was built with."""
        return torch.autocast(**self.arguments(handler))

    def wrap(self, model: torch.nn.Module) -> None:
        """Make `model.forward` run under autocast; inside the wrapper of `torch.compile`, if there is one."""
        target = uncompiled(model)
        original = target.forward
        target.__dict__["_original_forward"] = original
        target.__dict__["forward"] = AutocastForward(target, original, self.arguments(), self.convert)


class AutocastForward:
    """The forward of one module under autocast.

    Args:
        module: whose forward it is.
        original: the forward before; found again under `__wrapped__`, so that `inspect.signature` sees through.
        arguments: keyword arguments of `torch.autocast`.
        convert: what is done with the output.
    """

    def __init__(
        self,
        module: torch.nn.Module,
        original: Callable[..., Any],
        arguments: dict[str, Any],
        convert: Callable[[Any], Any],
    ) -> None:
        functools.update_wrapper(self, original)
        self.module = module
        self.original = original
        self.arguments = arguments
        self.convert = convert

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        with torch.autocast(**self.arguments):
            output = self.original(*args, **kwargs)
        return self.convert(output)

    def bound_to(self, module: torch.nn.Module, original: Callable[..., Any]) -> AutocastForward:
        """Return the same for another module and its forward."""
        return AutocastForward(module, original, self.arguments, self.convert)

    def __deepcopy__(self, memo: dict[int, Any]) -> AutocastForward:
        return self.bound_to(copy.deepcopy(self.module, memo), copy.deepcopy(self.original, memo))

    def __reduce__(self) -> tuple[Any, ...]:
        # At the time a pickle is read the module is still bare, so this finds the forward of its class.
        return getattr, (self.module, "forward")


def uncompiled(model: torch.nn.Module) -> torch.nn.Module:
    """Return the module inside the wrapper that `torch.compile(model)` makes, `model` itself if it is none."""
    while isinstance(inner := model._modules.get("_orig_mod"), torch.nn.Module):
        model = inner
    return model


def has_autocast(model: torch.nn.Module) -> bool:
    """Whether the forward of `model` runs under the autocast of a precision."""
    return any(isinstance(model.__dict__.get(holder), AutocastForward) for holder in HOLDERS)


def strip_autocast(model: torch.nn.Module) -> None:
    """Take `AutocastForward` out of `model`, whether it is the forward itself or below that of a hook."""
    for holder in HOLDERS:
        forward = model.__dict__.get(holder)
        while isinstance(forward, AutocastForward):
            forward = model.__dict__[holder] = forward.original
    model.__dict__.pop("_original_forward", None)
    if model.__dict__.get("forward") == types.MethodType(type(model).forward, model):
        del model.__dict__["forward"]
