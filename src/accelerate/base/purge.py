"""Undoing what a test leaves in the environment; apart from `environ`, which every start of the library reads."""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

T = TypeVar("T", bound=Callable[..., Any])


@contextmanager
def _accelerate_variables_kept() -> Iterator[None]:
    """Restore every ACCELERATE_* variable after the block."""
    saved = {name: value for name, value in os.environ.items() if name.startswith("ACCELERATE_")}
    try:
        yield
    finally:
        for name in [name for name in os.environ if name.startswith("ACCELERATE_")]:
            del os.environ[name]
        os.environ.update(saved)


def purge_accelerate_environment(func_or_cls: T) -> T:
    """Decorate a function, or the tests of a class, so that ACCELERATE_* variables they leave behind are undone.

    In a class, methods whose names start with `test` are wrapped: inherited ones, and those of later subclasses, too.
    """
    if not inspect.isclass(func_or_cls):
        return _purged(func_or_cls)

    decorated: Any = func_or_cls

    def wrap_tests_of_subclass(cls: type, **kwargs: Any) -> None:
        super(decorated, cls).__init_subclass__(**kwargs)
        _purge_tests(cls)

    decorated.__init_subclass__ = classmethod(wrap_tests_of_subclass)
    _purge_tests(decorated)
    return func_or_cls


def _purge_tests(cls: type) -> None:
    """Wrap every test method of `cls`."""
    for name in dir(cls):
        if name.startswith("test"):
            setattr(cls, name, _purged_member(inspect.getattr_static(cls, name)))


def _purged_member(member: Any) -> Any:
    """Wrap a member of a class, keeping it static, bound to the class, or plain."""
    if isinstance(member, (staticmethod, classmethod)):
        return type(member)(_purged(member.__func__))
    return _purged(member) if inspect.isfunction(member) else member


def _purged(function: Any) -> Any:
    """Wrap one function, generator function or coroutine function."""
    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def wrapped(*args: Any, **kwargs: Any) -> Any:
            with _accelerate_variables_kept():
                return await function(*args, **kwargs)

    elif inspect.isgeneratorfunction(function):

        @functools.wraps(function)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            with _accelerate_variables_kept():
                return (yield from function(*args, **kwargs))

    else:

        @functools.wraps(function)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            with _accelerate_variables_kept():
                return function(*args, **kwargs)

    return wrapped
