"""Readable tracebacks by `rich`, for scripts that ask for them with ACCELERATE_ENABLE_RICH=1."""

from __future__ import annotations

from accelerate.base.environ import parse_flag_from_env
from accelerate.base.messages import message

if not parse_flag_from_env("ACCELERATE_ENABLE_RICH"):
    raise ModuleNotFoundError(
        message(
            given="import accelerate.utils.rich without ACCELERATE_ENABLE_RICH",
            why="it installs a traceback handler for the whole process, which a script has to ask for",
            allowed="ACCELERATE_ENABLE_RICH=1 in the environment",
            do="set the variable, or call rich.traceback.install() yourself",
        )
    )

from rich.traceback import install

install(show_locals=False)
