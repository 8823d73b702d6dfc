"""What a script does with its processes: wait, go first, run something on one of them only, share out work, print.

Written once: `PartialState`, `AcceleratorState` and `Accelerator` inherit :class:`ProcessControl`, and bring the facts
it rests on, as attributes or as properties.
"""

from __future__ import annotations

import builtins
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import TYPE_CHECKING, Any

from accelerate.base.messages import message
from accelerate.config.enums import DistributedType

if TYPE_CHECKING:
    from accelerate.comm.collectives import Collectives

Function = Callable[..., Any]


def do_nothing(*args: Any, **kwargs: Any) -> None:
    """Stand in for a function on the processes that it is not for."""


class ProcessControl:
    """The methods that steer processes, for classes that know where they stand among them."""

    #: The process that writes and reports; the first, unless the strategy keeps its results on another.
    _main_process_index: int = 0

    if TYPE_CHECKING:  # what a class that inherits from this one has to bring

        @property
        def process_index(self) -> int: ...
        @property
        def local_process_index(self) -> int: ...
        @property
        def num_processes(self) -> int: ...
        @property
        def distributed_type(self) -> DistributedType: ...
        @property
        def _collectives(self) -> Collectives: ...

    @property
    def use_distributed(self) -> bool:
        """Whether several processes work together."""
        return self.distributed_type != DistributedType.NO and self.num_processes > 1

    @property
    def is_main_process(self) -> bool:
        """Whether this is the process that writes and reports for all."""
        return self.process_index == self._main_process_index

    @property
    def is_local_main_process(self) -> bool:
        """Whether this is the first process on its machine."""
        return self.local_process_index == 0

    @property
    def is_last_process(self) -> bool:
        """Whether this is the last process of all."""
        return self.process_index == self.num_processes - 1

    def wait_for_everyone(self) -> None:
        """Return when every process has come here."""
        self._collectives.barrier()

    @contextmanager
    def main_process_first(self) -> Iterator[None]:
        """Let the main process run the block before all others, for instance to fill a cache that they then read."""
        with _first(self, self.is_main_process):
            yield

    @contextmanager
    def local_main_process_first(self) -> Iterator[None]:
        """Let the first process of every machine run the block before the others."""
        with _first(self, self.is_local_main_process):
            yield

    @contextmanager
    def split_between_processes(self, inputs: Any, apply_padding: bool = False) -> Iterator[Any]:
        """Give this process its part of `inputs`.

        Args:
            inputs: a list, tuple, tensor, numpy array or `datasets.Dataset` of items, or a dictionary of columns of
                equal length. The first processes get one item more when the number doesn't divide; with fewer items
                than processes the last ones get none. Tensors stay on their device, and `inputs` is not changed.
            apply_padding: repeat the last item so that all processes have equally many, for gathering the results;
                drop the repeated ones afterwards.

        Raises:
            ValueError: columns of different lengths.
            TypeError: a column that can't be divided.
        """
        from accelerate.state.split import split  # few scripts divide data by hand

        yield split(inputs, self.process_index, self.num_processes, apply_padding)

    def on_main_process(self, function: Function | None = None) -> Function:
        """Decorate a function so that it runs on the main process only, and returns None elsewhere."""
        return _run_where(lambda here: here.is_main_process, self, function)

    def on_local_main_process(self, function: Function | None = None) -> Function:
        """Decorate a function so that it runs on the first process of every machine only."""
        return _run_where(lambda here: here.is_local_main_process, self, function)

    def on_last_process(self, function: Function | None = None) -> Function:
        """Decorate a function so that it runs on the last process only."""
        return _run_where(lambda here: here.is_last_process, self, function)

    def on_process(self, function: Function | None = None, process_index: int | None = None) -> Function:
        """Decorate a function so that it runs on process `process_index` only; where there is one process, there."""
        wanted = _needed(process_index, "on_process", "process_index")
        return _run_where(lambda here: here.process_index == wanted or not here.use_distributed, self, function)

    def on_local_process(self, function: Function | None = None, local_process_index: int | None = None) -> Function:
        """Decorate a function so that it runs on process `local_process_index` of every machine only."""
        wanted = _needed(local_process_index, "on_local_process", "local_process_index")
        return _run_where(lambda here: here.local_process_index == wanted or not here.use_distributed, self, function)

    def print(self, *args: Any, **kwargs: Any) -> None:
        """Print on the first process of every machine."""
        if self.is_local_main_process:
            builtins.print(*args, **kwargs)


@contextmanager
def _first(control: ProcessControl, goes_first: bool) -> Iterator[None]:
    """Run the block where `goes_first`, then elsewhere; a block that raises sets the others free too."""
    if not goes_first:
        control.wait_for_everyone()
    try:
        yield
    finally:
        if goes_first:
            control.wait_for_everyone()


def _run_where(here: Callable[[Any], bool], owner: Any, function: Function | None) -> Function:
    """Return `function`, doing nothing where `here` is false, which is asked at every call.

    Three spellings arrive here: `@state.on_main_process`, `@state.on_main_process()`, and in the body of a class
    `@ProcessControl.on_main_process`, where `owner` is the method and the processes are its first argument.
    """
    if not isinstance(owner, ProcessControl):

        @wraps(owner)
        def method(self: Any, *args: Any, **kwargs: Any) -> Any:
            return (owner if here(self) else do_nothing)(self, *args, **kwargs)

        return method
    if function is None:
        return lambda decorated: _run_where(here, owner, decorated)

    @wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        return (function if here(owner) else do_nothing)(*args, **kwargs)

    return run


def _needed(index: int | None, method: str, argument: str) -> int:
    """Return the index that a decorator was given, or refuse to run the function nowhere."""
    if index is None:
        raise ValueError(
            message(
                given=f"{method} without {argument}",
                why="it doesn't say which process the function is for, so it would run nowhere",
                allowed=f"{argument} from 0 to the number of processes less one",
                do=f"write @state.{method}({argument}=0), for instance",
            )
        )
    return index
