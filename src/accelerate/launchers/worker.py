"""What a process does at its start when `accelerate launch` has started it: be readable among its peers.

When one rank fails, the others lose their peer and fail too, each with a traceback that hides the one that matters.
The first to fail prints as always; the others stay silent. Ctrl-C ends every process without a traceback: the
person knows. And lines are written whole, so that the words of several ranks don't mix within one.
"""

from __future__ import annotations

import atexit
import functools
import io
import json
import os
import sys
import threading
import time
import traceback
from contextlib import suppress
from pathlib import Path
from types import TracebackType

from accelerate.launchers.run_folder import FIRST, LEAVING, READY, VARIABLE, launcher_of
from accelerate.launchers.stall import VARIABLE as WATCHDOG
from accelerate.launchers.stall import watch_main_thread


@functools.cache
def set_up() -> bool:
    """Report uncaught exceptions to the launcher, and print whole lines, if it has started this very process.

    What a rank starts in turn inherits the variable, but is the rank's business. A second call changes nothing.

    Returns:
        Whether the launcher has started this process.
    """
    folder = Path(os.environ.get(VARIABLE, ""))
    if VARIABLE not in os.environ or not folder.is_dir() or launcher_of(folder) != os.getppid():
        return False
    report_failures(folder)
    print_whole_lines()
    if seconds := float(os.environ.get(WATCHDOG, "0")):
        watch_main_thread(folder, seconds)
    return True


def print_whole_lines() -> None:
    """Write line by line where every word is written by itself, as torchrun asks of the processes it starts."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and stream.write_through:
            stream.reconfigure(line_buffering=True, write_through=False)


def report_failures(folder: Path) -> None:
    """Let an uncaught exception be printed by the first process that fails only, and say when this process ends."""
    print_it = sys.excepthook

    def report(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        leave(folder)
        if not issubclass(kind, KeyboardInterrupt) and claim(folder, error):
            print_it(kind, error, trace)

    sys.excepthook = report
    # Before all that `atexit` does, such as leaving the process group, of which the peers would be told first.
    getattr(threading, "_register_atexit", atexit.register)(leave, folder)
    (folder / f"{READY}{os.getpid()}").touch()


def leave(folder: Path) -> None:
    """Say that this process has begun to end; only the first time counts."""
    with suppress(OSError), (folder / f"{LEAVING}{os.getpid()}").open("x") as file:
        file.write(str(time.time()))


def claim(folder: Path, error: BaseException) -> bool:
    """Say that this process failed with `error`; return whether it is the first to say so.

    When the folder is gone, the launcher is too, and nobody else will tell.
    """
    line = "".join(traceback.format_exception_only(type(error), error)).strip().splitlines()[-1]
    try:
        with (folder / FIRST).open("x", encoding="utf-8") as file:
            json.dump({"pid": os.getpid(), "error": line}, file)
    except FileExistsError:
        return False
    except OSError:
        return True
    return True
