"""What a model does on the level of its modules: a graph of their calls, which a pipeline is cut by.

Code inside of blocks isn't looked into, so blocks stay what they are: hooks, sharding, compilation and checkpointing
of activations work in them as anywhere else. What runs around them (the forward of the model itself, the loss) is
traced by `torch.export`. Tracing goes through a copy of the model without values, on which a call of a block is one
operation; so it does not matter what has become of the real model in the meantime.
"""

from __future__ import annotations

import enum
import warnings
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode
from torch.distributed.pipelining import pipe_split
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import _disable_current_modes

from accelerate.base.messages import message, warn_once
from accelerate.strategies.unwrap import share

_OPERATIONS = torch.library.Library("accelerate_pipeline", "DEF")
_OPERATIONS.define("call(Tensor[] tensors, int number) -> Tensor[]")
#: The calls that have been met while a model is traced; the last list is that of the model at hand.
_met: list[list[Call]] = []

CALL = torch.ops.accelerate_pipeline.call.default
PLAIN = (type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device, enum.Enum)


class Template:
    """Nested data with the tensors taken out."""

    def __init__(self, data: Any) -> None:
        leaves, self.structure = pytree.tree_flatten(data)
        self.tensors = [each for each in leaves if isinstance(each, torch.Tensor)]
        self.leaves = [None if isinstance(each, torch.Tensor) else (each,) for each in leaves]
        self.odd = [each for each in leaves if not isinstance(each, (torch.Tensor, *PLAIN)) and not callable(each)]

    def filled(self, tensors: Sequence[torch.Tensor]) -> Any:
        """Return the data with these tensors in it."""
        rest = iter(tensors)
        leaves = [next(rest) if each is None else each[0] for each in self.leaves]
        return pytree.tree_unflatten(leaves, self.structure)


class Call:
    """One call of a module: which one, and what it is given and gives beside tensors.

    Args:
        name: the module's name in the model.
        given: its arguments, positional and named.
        gives: what it returns; its tensors have shapes alone.
    """

    def __init__(self, name: str, given: Template, gives: Template) -> None:
        self.name, self.given, self.gives = name, given, gives
        self.shapes = [(tuple(each.shape), each.stride(), each.dtype) for each in gives.tensors]
        given.tensors, gives.tensors = [], []


class Outline:
    """A model without values, to be traced any number of times.

    Args:
        model: a bare model that no axis has divided yet; nothing of it is changed.
        split_points: names of the modules that are traced up to: modules around them are looked into.
    """

    def __init__(self, model: torch.nn.Module, split_points: Sequence[str]) -> None:
        self.model = _copy(model, {}, {}, "meta")
        self.split_points = list(split_points)

    def trace(
        self, around: Callable[[torch.nn.Module], torch.nn.Module], example: Sequence[torch.Tensor]
    ) -> tuple[torch.fx.GraphModule, list[Call]]:
        """Return the graph of a function of the model, and the calls of modules in it.

        Args:
            around: makes a module that takes tensors of one with the model's calls.
            example: tensors on the CPU that it takes.

        Raises:
            RuntimeError: it can't be traced.
        """
        copy, mode = _copy(self.model, {}, {}, "cpu"), FakeTensorMode(allow_non_fake_inputs=True)
        with mode:
            shapes = _copy(self.model, {}, {}, "cpu")
        for name, module in list(copy.named_modules()):
            if self._is_called(name, module):
                _record(module, name, shapes.get_submodule(name), mode, name in self.split_points)
        _met.append([])
        try:
            with torch.enable_grad(), warnings.catch_warnings():  # so that the model's own no_grad is noticed
                warnings.filterwarnings("ignore", ".*LeafSpec", FutureWarning)  # what torch says to torch
                traced: Any = torch.export.export(around(copy), tuple(example), strict=False).module()
        except RuntimeError as error:
            raise RuntimeError(_not_traced(error)) from error
        finally:
            calls = _met.pop()
        return traced, calls

    def _is_called(self, name: str, module: torch.nn.Module) -> bool:
        """Whether a module's calls are operations: it is none that a split point is inside of."""
        around = not name or any(point.startswith(f"{name}.") for point in self.split_points)
        return not around and not isinstance(module, torch.jit.ScriptModule)


def _copy(
    module: torch.nn.Module, done: dict[Any, torch.nn.Module], tensors: dict[torch.Tensor, torch.Tensor], device: str
) -> torch.nn.Module:
    """Return a module like `module`, with tensors of other values."""
    if module not in done:
        children = {
            name: None if child is None else _copy(child, done, tensors, device)
            for name, child in module._modules.items()
        }
        new: Any = share(module, children)
        done[module] = new
        hooks = {name: each.copy() for name, each in new.__dict__.items() if isinstance(each, OrderedDict)}
        new.__dict__.update(hooks)  # the model's own may come to be those of an axis
        new._parameters = {name: _empty(each, tensors, device) for name, each in module._parameters.items()}
        new._buffers = {name: _empty(each, tensors, device) for name, each in module._buffers.items()}
    return done[module]


def _empty(tensor: torch.Tensor | None, known: dict[torch.Tensor, torch.Tensor], device: str) -> torch.Tensor | None:
    if tensor is None:
        return None
    if tensor not in known:
        new = torch.empty(tensor.shape, dtype=tensor.dtype, device=device)
        is_parameter = isinstance(tensor, torch.nn.Parameter)
        known[tensor] = torch.nn.Parameter(new, requires_grad=tensor.requires_grad) if is_parameter else new
    return known[tensor]


def _record(module: torch.nn.Module, name: str, shapes: torch.nn.Module, mode: FakeTensorMode, begins: bool) -> None:
    """Make each call of `module` one operation.

    Args:
        name: its name in the model.
        shapes: the same module, with tensors of `mode`, to learn from what it returns.
        begins: a part of a pipeline begins with it.
    """
    kind = type(module)

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        if begins:
            pipe_split()
        given = Template((args, kwargs))
        gives = None if given.odd else _learn(given, shapes, mode, self.training)
        if gives is None or gives.odd:
            _warn_of((given if gives is None else gives).odd[0])
            return kind.__call__(self, *args, **kwargs)
        tensors = given.tensors
        _met[-1].append(Call(name, given, gives))
        return gives.filled(CALL(tensors, len(_met[-1]) - 1))

    if kind.forward is not torch.nn.Module.forward:  # lists of modules are not called
        module.__class__ = type(kind.__name__, (kind,), {"__call__": call, "__module__": kind.__module__})


def _learn(given: Template, shapes: torch.nn.Module, mode: FakeTensorMode, training: bool) -> Template:
    """Return what a module returns for arguments of some shapes; one that looks at values is shown some."""
    with _disable_current_modes(), torch._C.DisableTorchFunction(), torch.no_grad():
        try:
            with mode:
                return _returned(given, shapes.train(training))
        except DataDependentOutputException:
            return _returned(given, _copy(shapes, {}, {}, "cpu"))


def _returned(given: Template, module: torch.nn.Module) -> Template:
    tensors = [torch.empty_strided(each.shape, each.stride(), dtype=each.dtype).zero_() for each in given.tensors]
    args, kwargs = given.filled(tensors)
    return Template(module(*args, **kwargs))


def _call_of_shapes(tensors: Sequence[torch.Tensor], number: int) -> list[torch.Tensor]:
    return [torch.empty_strided(shape, stride, dtype=dtype) for shape, stride, dtype in _met[-1][number].shapes]


torch.library.register_fake("accelerate_pipeline::call", _call_of_shapes, lib=_OPERATIONS)


def _warn_of(odd: Any) -> None:
    warn_once(
        f"Modules take or return a {type(odd).__name__}. A pipeline runs the operations in them one by one then, "
        "without what was done to the modules: compilation, checkpointing of activations. Models of transformers don't "
        "keep such an object with use_cache=False."
    )


def _not_traced(error: RuntimeError) -> str:
    return message(
        given="a model for a pipeline",
        why=f"torch.export can't trace what it does around the modules in it: {error.__cause__ or error}",
        allowed="models whose own forward depends on the shapes of inputs, not on their values",
        do="move what does into a module of its own, or name other split_points",
    )
