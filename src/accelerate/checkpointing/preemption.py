"""Leaving when a signal says so: all ranks finish the same step, save, and exit with a code that asks for a restart.

A signal may reach one rank only, and ranks are never at the same point, so they have to agree on the step after which
all of them stop. On every rank a thread looks into the store of the process group, where a rank that got a signal has
left a note. Each thread writes down the boundary between two steps that its rank comes to next, and all stop at the
greatest of these. A rank that gets to its own boundary waits until that is known; the threads find out without the
training loops, so no rank waits for one that waits for it.
"""

from __future__ import annotations

import atexit
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any, Protocol
from weakref import WeakSet

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from accelerate.base.messages import message, warn_once
from accelerate.checkpointing.workers import shield_workers
from accelerate.logging import get_logger
from accelerate.state.gradient import GradientState, Iteration

logger = get_logger(__name__)

INTERVAL = 0.25  #: seconds between two looks into the store
ASKED = "asked"
NEVER = 2**62  #: the boundary of a rank that comes to no further one


class Store(Protocol):
    """What is needed of a `torch.distributed.Store`."""

    def set(self, key: str, value: str) -> None: ...
    def get(self, key: str) -> bytes: ...
    def check(self, keys: list[str]) -> bool: ...


class Rendezvous:
    """The boundary between two steps at which all ranks stop.

    Args:
        rank: this rank.
        world_size: how many there are.
        store: what all ranks can write into; None for one rank.
        interval: seconds between two looks into it.
    """

    def __init__(self, rank: int, world_size: int, store: Store | None, interval: float = INTERVAL) -> None:
        self.asked = False  #: a signal has come; set from its handler, which must not wait for anything
        self.alone = store is None
        self._rank = rank
        self._world_size = world_size
        self._store = store
        self._interval = interval
        self._passed = 0
        self._holding = False
        self._stop_at: int | None = None
        self._changed = threading.Condition()
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None
        if store is not None:
            self._thread = threading.Thread(target=self._watch, name="accelerate-preemption", daemon=True)
            self._thread.start()

    def passes(self) -> bool:
        """Count a boundary between two steps, and return whether this is where all ranks stop."""
        if self._store is None:
            return self.asked
        with self._changed:
            self._passed += 1
            if not self._holding:
                return False
            while self._stop_at is None and not self._ended.is_set():
                self._changed.wait(self._interval)
            return self._stop_at is not None and self._passed >= self._stop_at

    def close(self) -> None:
        """Look no longer; ranks that wait for this one's next boundary learn that it comes to none."""
        self._ended.set()
        if self._thread is None or self._thread is threading.current_thread():
            return
        self._thread.join()
        if self._store is not None and not self._holding:
            self._holding = True
            with suppress(RuntimeError):  # the store is gone when who kept it has ended before
                self._store.set(str(self._rank), str(NEVER))

    def _watch(self) -> None:
        """Look into the store until somebody asks to stop, then find out where."""
        assert self._store is not None
        try:
            while not self._ended.wait(self._interval):
                if self.asked:
                    self._store.set(ASKED, "1")
                if self._store.check([ASKED]):
                    self._agree(self._store)
                    return
        except RuntimeError:  # the store is gone, and with it the process group: the run is at its end
            self._ended.set()

    def _agree(self, store: Store) -> None:
        """Hold this rank at its next boundary, and let it go on to the greatest one at which a rank is held."""
        with self._changed:
            self._holding = True
            store.set(str(self._rank), str(self._passed + 1))
        everyone = [str(rank) for rank in range(self._world_size)]
        while not store.check(everyone):
            if self._ended.wait(self._interval):
                return
        stop_at = max(int(store.get(rank)) for rank in everyone)
        with self._changed:
            self._stop_at = stop_at
            self._changed.notify_all()


class Preemption:
    """Saves and leaves between two training steps, once a signal has come.

    Between two steps is where a loop over a prepared loader asks for its next batch, when gradients were computed from
    every batch that was handed out before, and no loop around it has handed out one in the meantime; and where a loop
    that is known to train begins a pass. What follows the last batch of a pass belongs to that batch.

    Args:
        signals: which signals.
        rendezvous: agrees with the other ranks.
        gradient_state: calls back between batches, and knows the running loops.
        leave: saves, and ends the process.
    """

    def __init__(
        self,
        signals: Iterable[int],
        rendezvous: Rendezvous,
        gradient_state: GradientState,
        leave: Callable[[], None],
    ) -> None:
        self._pid = os.getpid()
        self._rendezvous = rendezvous
        self._gradient_state = gradient_state
        self._leave = leave
        self._settled = 0  # the turn of the loaders at the latest boundary
        self._training: WeakSet[Any] = WeakSet()  # what is known of the loaders that training loops iterate
        self._before = {number: signal.signal(number, self._receive) for number in signals}
        self._updates = register_optimizer_step_post_hook(self._note_update)
        gradient_state.between_batches = self.between_batches
        atexit.register(self.close)

    def _receive(self, number: int, frame: Any) -> None:
        """Note a signal; in a child process, which is nobody's rank, do what it did before."""
        if os.getpid() != self._pid:
            signal.signal(number, self._before[number] or signal.SIG_DFL)
            os.kill(os.getpid(), number)
        else:
            self._rendezvous.asked = True

    def _note_update(self, *_: Any) -> None:
        """See that a loop trains also where its backward passes go past the `Accelerator`."""
        self._gradient_state.trained = self._gradient_state.turn

    def between_batches(self, loader: Any, iteration: Iteration | None) -> None:
        """Leave, if this is between two training steps and all ranks stop here.

        Args:
            loader: a prepared loader.
            iteration: the pass over it that is about to go on or to end; None when one is about to begin.
        """
        if threading.current_thread() is not threading.main_thread():
            return  # somebody reads ahead, and which step is being made isn't known here
        if iteration is None:
            shield_workers(loader, tuple(self._before))
            stops = loader.progress in self._training and not self._gradient_state.running
        else:
            stops = self._is_boundary(iteration)
            if stops:
                self._training.add(loader.progress)
                self._settled = self._gradient_state.turn
            stops = stops and not iteration.end_of_dataloader and self._is_even(loader)
        if stops and self._rendezvous.passes():
            self._leave()

    def _is_boundary(self, iteration: Iteration) -> bool:
        """Return whether all batches that were handed out are trained on, and no other loop is in the middle of one.

        Of loops that run in turn, as in `zip`, only the one that is the first to go on is at such a point.
        """
        state = self._gradient_state
        if any(each.turn > state.trained for each in state.running):
            return False
        around = [each for each in state.running if self._settled < each.turn < iteration.turn]
        if around and self._rendezvous.asked:
            warn_once(
                "A signal has asked to save and leave, which waits for a loop around this one to go on with its next "
                "batch. If that loop never does, call accelerator.leave_if_asked() at the end of a step."
            )
        return not around

    def _is_even(self, loader: Any) -> bool:
        """Return whether all ranks get as many batches in a pass; otherwise only its beginning is common to them."""
        dealt = getattr(loader, "batch_sampler", None) or getattr(loader, "sampler", None)
        return self._rendezvous.alone or getattr(dealt, "even_batches", True)

    def step(self) -> None:
        """Leave, if all ranks stop here; for loops that iterate no prepared loader."""
        if self._rendezvous.passes():
            self._leave()

    def close(self) -> None:
        """Take the signal handlers back and look no longer."""
        atexit.unregister(self.close)
        self._updates.remove()
        if self._gradient_state.initialized and self._gradient_state.between_batches == self.between_batches:
            self._gradient_state.between_batches = None
        for number, handler in self._before.items():
            if signal.getsignal(number) == self._receive:
                signal.signal(number, signal.SIG_DFL if handler is None else handler)
        self._rendezvous.close()


def check_signals(signals: Iterable[int]) -> tuple[int, ...]:
    """Return signals as they can be handled.

    Raises:
        ValueError: there is none, one can't be handled, or this is not the main thread.
    """
    chosen = tuple(signal.Signals(number) for number in signals)
    uncatchable = {getattr(signal, name, None) for name in ("SIGKILL", "SIGSTOP")}
    bad = [number.name for number in chosen if number in uncatchable]
    if bad or not chosen or threading.current_thread() is not threading.main_thread():
        raise ValueError(
            message(
                given=f"checkpoint_on_signal({', '.join(number.name for number in chosen)})",
                why=f"{', '.join(bad)} ends a process without asking it"
                if bad
                else "no signal is named"
                if not chosen
                else "only the main thread of a process can handle signals",
                allowed="signals such as signal.SIGTERM and signal.SIGUSR1, in the main thread",
                do="name the signal that your scheduler sends before it takes the machine away",
            )
        )
    return chosen


def store_of(world_size: int, number: int) -> Store | None:
    """Return what all ranks can write into, apart from everything else and from earlier uses; None for one rank.

    It is a connection of its own: one that somebody waits on for another rank lets nobody else through.
    """
    if world_size == 1:
        return None
    # torch has no public way to the store of the default group, which its own device meshes and elastic use as well.
    store = torch.distributed.distributed_c10d._get_default_store()
    own = store.clone() if hasattr(store, "clone") else store
    return torch.distributed.PrefixStore(f"accelerate/preemption/{number}", own)


def leave(finish: Callable[[], None], save: Callable[[], Any], code: int) -> None:
    """Save, and end the process.

    Args:
        finish: waits for a save that is under way. If that one has failed, there is the more reason for this one.
        save: saves, and returns where.
        code: what the process ends with.

    Raises:
        SystemExit: always, with `code`.
    """
    try:
        finish()
    except RuntimeError:
        logger.warning("A signal asked to stop, and the save that was under way failed:", exc_info=True)
    folder = save()
    logger.warning(f"A signal asked to stop: saved {folder}, leaving with code {code}.")
    sys.exit(code)
