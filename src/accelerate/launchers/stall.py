"""Noticing a hang, in the process that hangs: a thread looks at what the main thread executes.

A main thread that stands at the same instruction of the same functions, look after look, waits for something. Nothing
is counted, so that a training step costs nothing. The other side is `accelerate.launchers.watchdog`.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import FrameType

from accelerate.launchers.run_folder import STALLED

VARIABLE = "ACCELERATE_WATCHDOG"
#: Where collectives are waited for: the innermost function of these files is the one that hangs.
COLLECTIVES = ("distributed_c10d.py", "c10d_logger.py")


def watch_main_thread(folder: Path, seconds: float) -> threading.Thread:
    """Say in `folder` when the main thread hasn't moved for `seconds`, and take it back when it moves again."""
    thread = threading.Thread(target=_watch, args=(folder, seconds), name="accelerate-watchdog", daemon=True)
    thread.start()
    return thread


def _watch(folder: Path, seconds: float) -> None:
    """Look at the main thread until the launcher is gone."""
    path = folder / f"{STALLED}{os.getpid()}"
    main = threading.main_thread().ident
    interval = min(1.0, seconds / 4)
    before, since, told = None, time.time(), False
    while folder.is_dir():
        time.sleep(interval)
        frame = sys._current_frames().get(main or 0)
        now = tuple((id(one.f_code), one.f_lasti) for one in frames(frame))
        if now != before:
            before, since = now, time.time()
            if told:
                path.unlink(missing_ok=True)
                told = False
        elif not told and frame is not None and time.time() - since >= seconds:
            with suppress(OSError):  # the launch has ended, and its folder with it
                path.write_text(json.dumps(report(frame, since)), encoding="utf-8")
                told = True
        del frame


def frames(frame: FrameType | None) -> Iterator[FrameType]:
    """Yield a frame and those that called it, the innermost first."""
    while frame is not None:
        yield frame
        frame = frame.f_back


def report(frame: FrameType, since: float) -> dict[str, object]:
    """Return what the launcher is told: the rank, since when, the collective it waits in if any, and the stack."""
    return {
        "rank": int(os.environ.get("RANK", "0")),
        "since": since,
        "collective": collective(frame),
        "stack": "".join(traceback.format_stack(frame)),
    }


def collective(frame: FrameType) -> str | None:
    """Return the collective that a stack waits in: the outermost of the innermost functions that are about one."""
    name = None
    for one in frames(frame):
        if one.f_code.co_filename.endswith(COLLECTIVES):
            name = name if one.f_code.co_name == "wrapper" else one.f_code.co_name  # torch wraps them to keep a log
        elif name is not None:
            break
    return name
