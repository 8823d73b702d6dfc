"""Memory that runs out and is given back: retrying with a smaller batch, dropping objects, emptying the cache."""

from __future__ import annotations

import functools
import gc
import inspect
import logging
from collections.abc import Callable
from typing import Any

import torch

from accelerate.base.messages import message
from accelerate.devices.device import device_class
from accelerate.devices.specs import spec_for

logger = logging.getLogger(__name__)

#: What backends say that do not raise `torch.OutOfMemoryError` when memory runs out.
OUT_OF_MEMORY = (
    " out of memory.",
    "MPS backend out of memory",
    "cuDNN error: CUDNN_STATUS_NOT_SUPPORTED.",
    "DefaultCPUAllocator: can't allocate memory",
    "FATAL ERROR :: MODULE:PT_DEVMEM Allocation failed",
)
SHRINK = 0.9


def clear_device_cache(garbage_collection: bool = False) -> None:
    """Give cached memory back to the accelerator, if there is one, after a garbage collection if asked."""
    if garbage_collection:
        gc.collect()
    accelerator = torch.accelerator.current_accelerator()
    if accelerator is None:
        return
    spec = spec_for(accelerator.type)
    module = torch.get_device_module(accelerator)
    if hasattr(module, "empty_cache") and device_class(spec).is_present(spec):
        module.empty_cache()


def release_memory(*objects: Any) -> list[None]:
    """Return as many Nones as there are `objects`, to bind the caller's names to, and empty the cache.

    Use it as ``model, optimizer = release_memory(model, optimizer)``.
    """
    clear_device_cache(garbage_collection=True)
    return [None] * len(objects)


def should_reduce_batch_size(exception: BaseException) -> bool:
    """Return whether `exception` says that memory ran out, on any kind of device."""
    if isinstance(exception, torch.OutOfMemoryError):
        return True
    if not isinstance(exception, RuntimeError) or len(exception.args) != 1:
        return False
    return any(text in str(exception.args[0]) for text in OUT_OF_MEMORY)


def find_executable_batch_size(
    function: Callable[..., Any] | None = None,
    starting_batch_size: int = 128,
    reduce_batch_size_fn: Callable[[], int] | None = None,
    *,
    minimum: int = 1,
) -> Callable[..., Any]:
    """Decorate a function so that it is tried with ever smaller batches until it fits into memory.

    The batch size that worked is where the next call of the decorated function starts.

    Args:
        function: takes the batch size as its first argument, which callers then leave out.
        starting_batch_size: what is tried first.
        reduce_batch_size_fn: takes nothing and returns the next batch size; by default, nine tenths of the last one.
        minimum: the smallest batch size worth trying.

    Raises:
        TypeError: (when called) the caller passed a batch size.
        RuntimeError: (when called) the function ran out of memory with the smallest batch size too.
    """
    if function is None:
        return functools.partial(
            find_executable_batch_size,
            starting_batch_size=starting_batch_size,
            reduce_batch_size_fn=reduce_batch_size_fn,
            minimum=minimum,
        )
    search = _Search(function, starting_batch_size, reduce_batch_size_fn, max(1, minimum))

    @functools.wraps(function)
    def decorated(*args: Any, **kwargs: Any) -> Any:
        return search(args, kwargs)

    return decorated


class _Search:
    """A function, and the batch size which is to be tried next."""

    def __init__(
        self, function: Callable[..., Any], batch_size: int, reduce: Callable[[], int] | None, minimum: int
    ) -> None:
        self.function = function
        self.name = getattr(function, "__name__", repr(function))
        self.batch_size = batch_size
        self.reduce = reduce or (lambda: int(self.batch_size * SHRINK))
        self.minimum = minimum

    def __call__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call the function with smaller and smaller batches, until it returns."""
        self._check(args, kwargs)
        clear_device_cache(garbage_collection=True)
        while self.batch_size >= self.minimum:
            try:
                return self.function(self.batch_size, *args, **kwargs)
            except Exception as error:
                if not should_reduce_batch_size(error):
                    raise
                reason = str(error).partition("\n")[0]
            # Outside of the handler, where the failed call's frames no longer hold on to its tensors.
            clear_device_cache(garbage_collection=True)
            self._shrink(reason)
        raise RuntimeError(_nothing_fits(self.name, self.batch_size, self.minimum))

    def _shrink(self, reason: str) -> None:
        """Take the next smaller batch size."""
        smaller = int(self.reduce())
        if smaller >= self.batch_size:
            raise RuntimeError(_not_smaller(self.name, self.batch_size, smaller))
        logger.info("%s ran out of memory with batch size %d (%s)", self.name, self.batch_size, reason)
        logger.info("Decreasing the batch size of %s to %d.", self.name, smaller)
        self.batch_size = smaller

    def _check(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Refuse a call that passes the batch size itself."""
        try:
            inspect.signature(self.function).bind(self.batch_size, *args, **kwargs)
        except TypeError as error:
            raise TypeError(_bad_call(self.function, self.name, args, error)) from None


def _bad_call(function: Callable[..., Any], name: str, args: tuple[Any, ...], error: TypeError) -> str:
    """Return the error for a call whose arguments do not fit behind the batch size."""
    names = list(inspect.signature(function).parameters)
    if len(args) < len(names) or not names:
        return f"{name}() {error}; the decorator passes the batch size as the first argument."
    shown = ", ".join(f"{key}={value}" for key, value in zip(names[1:], args[1:], strict=False))
    return message(
        given=f"a call of `{name}` with a batch size of its own",
        why="the decorator looks for the batch size, and puts it before the other arguments",
        allowed="the arguments that follow the batch size",
        do=f"call it without: `{name}({shown})`",
    )


def _nothing_fits(name: str, batch_size: int, minimum: int) -> str:
    """Return the error for a function that no batch size fits."""
    reached = "zero" if batch_size < 1 else f"{batch_size}, below the minimum of {minimum}"
    return message(
        given=f"`{name}`, with its batch size reduced to {reached}",
        why="it ran out of memory with every batch size that was tried",
        allowed=f"a function that fits into memory with some batch size of at least {minimum}",
        do="make the model or its inputs smaller, free other memory, or offload parameters",
    )


def _not_smaller(name: str, batch_size: int, smaller: int) -> str:
    """Return the error for a reduction that doesn't reduce, and would go on for ever."""
    return message(
        given=f"`reduce_batch_size_fn` of `{name}` returned {smaller} after {batch_size} ran out of memory",
        why="a batch size that isn't smaller would be tried again and again",
        allowed=f"a batch size below {batch_size}",
        do="let each call of the function return less than the one before",
    )
