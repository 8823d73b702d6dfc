"""Hooks: code that runs before and after a module's forward, and stays with the module.

`add_hook_to_module` puts a hook on a module, `SequentialHook` holds several. The module's `forward` then is
:func:`hooked_forward`, shown with the name and signature of the forward it had. That one is kept in `_old_forward`,
the hook in `_hf_hook`; published code looks for both names.
"""

from __future__ import annotations

import functools
import sys
import types
from collections.abc import Callable
from typing import Any

import torch

from accelerate.hooks.untraced import run_around_graphs, run_hooked, run_outside_graphs

#: Attributes that dispatching sets on a model, and that go when its hook is removed.
_accelerate_added_attributes = ["to", "cuda", "npu", "xpu", "mlu", "sdaa", "musa"]


class ModelHook:
    """Code around the forward of a module; this one does nothing. Override what is needed."""

    #: Whether the module's forward runs without gradients.
    no_grad = False

    @property
    def traceable(self) -> bool:
        """Whether `torch.compile` may look into what the hook does, and take it into its graphs."""
        return True

    def init_hook(self, module: torch.nn.Module) -> torch.nn.Module:
        """Prepare `module` when the hook is put on it; return the module, which may be another one."""
        return module

    def pre_forward(self, module: torch.nn.Module, *args: Any, **kwargs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the arguments that the forward of `module` is to be called with."""
        return args, kwargs

    def post_forward(self, module: torch.nn.Module, output: Any) -> Any:
        """Return what the call of `module` is to return, given the output of its forward."""
        return output

    def forward_failed(self, module: torch.nn.Module) -> None:
        """Clean up after a forward that raised; there is no output, so `post_forward` isn't called."""

    def detach_hook(self, module: torch.nn.Module) -> torch.nn.Module:
        """Undo on `module` what `init_hook` did, when the hook is removed; return the module."""
        return module


class SequentialHook(ModelHook):
    """Several hooks on one module, in order.

    Args:
        hooks: the hooks; each gets the arguments, and the output, as the one before left them.
    """

    def __init__(self, *hooks: ModelHook) -> None:
        self.hooks = hooks

    @property
    def traceable(self) -> bool:
        """Whether all of them may be traced."""
        return all(hook.traceable for hook in self.hooks)

    def init_hook(self, module: torch.nn.Module) -> torch.nn.Module:
        """Prepare the module for every hook."""
        for hook in self.hooks:
            module = hook.init_hook(module)
        return module

    def pre_forward(self, module: torch.nn.Module, *args: Any, **kwargs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Hand the arguments from hook to hook."""
        for hook in self.hooks:
            args, kwargs = hook.pre_forward(module, *args, **kwargs)
        return args, kwargs

    def post_forward(self, module: torch.nn.Module, output: Any) -> Any:
        """Hand the output from hook to hook."""
        for hook in self.hooks:
            output = hook.post_forward(module, output)
        return output

    def forward_failed(self, module: torch.nn.Module) -> None:
        """Let every hook clean up."""
        for hook in self.hooks:
            hook.forward_failed(module)

    def detach_hook(self, module: torch.nn.Module) -> torch.nn.Module:
        """Undo what every hook did."""
        for hook in self.hooks:
            module = hook.detach_hook(module)
        return module


def hooked_forward(module: Any, *args: Any, **kwargs: Any) -> Any:
    """Run the hook of `module` around the forward that it had before."""
    hook = module._hf_hook
    if "torch._dynamo" not in sys.modules or hook.traceable:  # who traces has loaded it, and may take up any function
        return run_hooked(hook, module, args, kwargs)
    if module._modules:
        return run_around_graphs(hook, module, args, kwargs)
    return run_outside_graphs(hook, module, args, kwargs)


def add_hook_to_module(module: torch.nn.Module, hook: ModelHook, append: bool = False) -> torch.nn.Module:
    """Put `hook` on `module` and return the module.

    Args:
        module: a module; one hook at a time runs on it.
        hook: the hook. One that is there already is replaced, without being asked to clean up.
        append: keep the hook that is there, and run `hook` after it.
    """
    own = module.__dict__  # a wrapper may show the attributes of what it wraps as its own
    if append and own.get("_hf_hook") is not None:
        first = own["_hf_hook"]
        remove_hook_from_module(module)
        hook = SequentialHook(first, hook)

    original = own["_old_forward"] if "_hf_hook" in own and "_old_forward" in own else module.forward
    own["_old_forward"] = original
    module = hook.init_hook(module)
    module.__dict__["_hf_hook"] = hook
    _set_forward(module, _hooked(module, original))
    return module


def remove_hook_from_module(module: torch.nn.Module, recurse: bool = False) -> torch.nn.Module:
    """Take the hook off `module`, if it has one, and return the module.

    Args:
        module: a module, with or without a hook.
        recurse: also take the hooks off everything in it.
    """
    own = module.__dict__
    if "_hf_hook" in own:
        own["_hf_hook"].detach_hook(module)
        del own["_hf_hook"]
    if "_old_forward" in own:
        _set_forward(module, own.pop("_old_forward"))
    for name in _accelerate_added_attributes:
        own.pop(name, None)
    if recurse:
        for child in module.children():
            remove_hook_from_module(child, recurse=True)
    return module


def remove_hook_from_submodules(module: torch.nn.Module) -> None:
    """Take the hooks off `module` and everything in it."""
    remove_hook_from_module(module, recurse=True)


def _hooked(module: torch.nn.Module, original: Any) -> Callable[..., Any]:
    """Return `hooked_forward` for `module`, looking like its `original` forward.

    A method of one function for all modules of a class, so that what `torch.compile` made of one serves the others.
    """
    function = getattr(original, "__func__", None)
    if isinstance(function, types.FunctionType) and original.__self__ is module:
        return types.MethodType(_method_like(function), module)
    return functools.update_wrapper(functools.partial(hooked_forward, module), original)


def _method_like(original: types.FunctionType) -> Callable[..., Any]:
    """Return the method that calls `hooked_forward` and looks like `original`; there is one, kept where that is."""
    if "_hooked" not in original.__dict__:
        # Of its own code, since torch.compile limits how many variants it makes of one. Methods are pickled by name: a
        # module that is being unpickled has none of this name, so that it fails and doesn't forget its hook.
        code = hooked_forward.__code__.replace()
        forward = functools.update_wrapper(types.FunctionType(code, globals()), original)
        forward.__name__ = "hooked_forward"
        original.__dict__["_hooked"] = forward
    return original.__dict__["_hooked"]


def _set_forward(module: torch.nn.Module, forward: Callable[..., Any]) -> None:
    """Have calls of `module` run `forward`; one that torch.fx traced calls that of its class."""
    if "GraphModule" in str(type(module)) and hasattr(module, "graph"):
        type(module).forward = forward
    else:
        module.forward = forward
