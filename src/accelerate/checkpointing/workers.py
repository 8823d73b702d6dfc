"""Workers of data loaders, which have to outlive a signal that goes to a whole session of processes.

Launchers and batch systems send their signals to every process of a job. A rank that is to finish its step needs the
processes that read data for it; they end when it ends them, or when it has ended.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterable
from typing import Any


class Shielded:
    """A `worker_init_fn` after which a worker obeys its own process only.

    Args:
        signals: which signals of others it does not obey.
        init: the `worker_init_fn` of the user.
    """

    def __init__(self, signals: tuple[int, ...], init: Callable[[int], Any] | None) -> None:
        self.signals = signals
        self.init = init

    def __call__(self, worker: int) -> None:
        ignore_others(self.signals)
        if self.init is not None:
            self.init(worker)


def shield_workers(loader: Any, signals: tuple[int, ...]) -> None:
    """Let the workers that a prepared loader starts from now on live through `signals`, where the system can do that.

    Args:
        loader: the loader.
        signals: those that its process handles.
    """
    reading = loader.base_dataloader
    if not getattr(reading, "num_workers", 0) or not hasattr(signal, "sigwaitinfo"):
        return
    before = reading.worker_init_fn
    if isinstance(before, Shielded):
        if before.signals == signals:
            return
        before = before.init
    reading.worker_init_fn = Shielded(signals, before)


def ignore_others(signals: Iterable[int]) -> None:
    """Let `signals` end this process only when its parent sends them."""
    chosen = set(signals)
    signal.pthread_sigmask(signal.SIG_BLOCK, chosen)
    threading.Thread(target=_obey, args=(chosen, os.getppid()), name="accelerate-shield", daemon=True).start()


def _obey(signals: set[int], parent: int) -> None:
    """Wait for a signal of the parent, as torch's own handler does, and end without a word."""
    while signal.sigwaitinfo(signals).si_pid != parent:
        pass
    os._exit(0)
