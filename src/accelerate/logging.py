"""Logging from several processes: by default only the main one speaks, and each message says which rank it comes from.

`get_logger(__name__)` takes the place of `logging.getLogger(__name__)`. Two keywords may be passed with any message:
`main_process_only=False` logs it on every process, and `in_order=True` on every process, one after the other.
"""

from __future__ import annotations

import logging
from collections.abc import MutableMapping
from typing import Any

from accelerate.base.environ import read
from accelerate.base.messages import did_you_mean, message, warn_once
from accelerate.state import PartialState

LEVELS = ("CRITICAL", "ERROR", "WARNING", "INFO", "DEBUG", "NOTSET")


class MultiProcessAdapter(logging.LoggerAdapter):
    """A logger that knows which process it is in; what it doesn't define itself is found on the logger it wraps.

    It can be made at any time, and used once a `PartialState` or an `Accelerator` exists.
    """

    def __init__(self, logger: logging.Logger, extra: dict[str, Any] | None = None) -> None:
        super().__init__(logger, extra)
        self._said: set[str] = set()

    def __getattr__(self, name: str) -> Any:
        if name in ("logger", "_said"):  # not built yet: an instance that is being copied or unpickled
            raise AttributeError(name)
        return getattr(self.logger, name)

    @property
    def propagate(self) -> bool:
        """Whether messages go on to the handlers of parent loggers."""
        return self.logger.propagate

    @propagate.setter
    def propagate(self, propagate: bool) -> None:
        self.logger.propagate = propagate

    @staticmethod
    def _should_log(main_process_only: bool) -> bool:
        """Return whether this process is one of those that log."""
        return not main_process_only or PartialState().is_main_process

    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[str, MutableMapping[str, Any]]:
        """Put the rank before the message, and the adapter's `extra` below that of the message."""
        if self.extra:
            kwargs["extra"] = {**self.extra, **(kwargs.get("extra") or {})}
        return f"[RANK {PartialState().process_index}] {msg}", kwargs

    def log(self, level: int, msg: Any, *args: Any, **kwargs: Any) -> None:
        """Log a message.

        Args:
            main_process_only: log on the main process only; the default, unless `in_order` is set.
            in_order: log on every process, rank by rank. All processes have to make the call, whatever their levels,
                and wait for each other in it.

        Raises:
            RuntimeError: the process doesn't know its rank yet.
        """
        if not PartialState._shared_state:
            raise RuntimeError(_no_state(msg))
        in_order = kwargs.pop("in_order", False)
        main_process_only = kwargs.pop("main_process_only", None)
        kwargs.setdefault("stacklevel", 2)
        if in_order and not main_process_only:
            return self._log_in_order(level, msg, args, kwargs)
        if in_order:
            warn_once(
                "in_order=True has no effect with main_process_only=True: one process has no order.", stacklevel=3
            )
        if self.isEnabledFor(level) and self._should_log(main_process_only in (None, True)):
            text, options = self.process(msg, kwargs)
            self.logger.log(level, text, *args, **options)
        return None

    def _log_in_order(self, level: int, msg: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Log on each rank in turn; one whose level is off, or whose handler raises, lets the others go on too."""
        state = PartialState()
        kwargs["stacklevel"] += 1
        for _ in range(state.process_index):
            state.wait_for_everyone()
        try:
            if self.isEnabledFor(level):
                text, options = self.process(msg, kwargs)
                self.logger.log(level, text, *args, **options)
        finally:
            for _ in range(state.process_index, state.num_processes):
                state.wait_for_everyone()

    def warning_once(self, *args: Any, **kwargs: Any) -> None:
        """Log a warning the first time that it is given with these arguments."""
        key = repr((args, kwargs))
        if key not in self._said:
            self._said.add(key)
            kwargs["stacklevel"] = kwargs.get("stacklevel", 2) + 1
            self.log(logging.WARNING, *args, **kwargs)


def get_logger(name: str, log_level: str | int | None = None) -> MultiProcessAdapter:
    """Return the logger `name`, speaking for several processes.

    Args:
        name: usually `__name__`.
        log_level: the level of this logger and of the root logger, by name or number; by default ACCELERATE_LOG_LEVEL,
            and without that levels stay as they are.

    Raises:
        ValueError: a level that doesn't exist.
    """
    logger = logging.getLogger(name)
    level = read("ACCELERATE_LOG_LEVEL") if log_level is None else log_level
    if level is not None:
        level = _checked(level)
        logger.setLevel(level)
        logger.root.setLevel(level)
    return MultiProcessAdapter(logger, {})


def _checked(level: str | int) -> str | int:
    """Return a level as the logging module takes it."""
    if isinstance(level, int):
        return level
    name = level.upper()
    if isinstance(logging.getLevelName(name), int):
        return name
    raise ValueError(
        message(
            given=f"log level {level!r}",
            why="the logging module knows no level of that name",
            allowed=", ".join(LEVELS),
            do=did_you_mean(name, LEVELS),
        )
    )


def _no_state(msg: object) -> str:
    """Return the error for a message before the process knows its rank."""
    return message(
        given=f"the log message {msg!r}",
        why="this logger asks which process it is in, and neither a PartialState nor an Accelerator exists yet",
        allowed="messages after `PartialState()` or `Accelerator()`",
        do="build one of them first, or use `logging.getLogger` for what comes earlier",
    )
