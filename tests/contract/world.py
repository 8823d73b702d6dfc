"""A few real processes that run test functions together, over gloo on this machine.

Starting Python and importing torch takes seconds, so the processes of a `World` stay alive and are handed one function
after another; states are reset in between. A rank that raises, dies or takes too long fails the call with the traceback
of that rank, and the world is started afresh for the next one.
"""

from __future__ import annotations

import multiprocessing
import os
import time
import traceback
from collections.abc import Callable
from multiprocessing import connection
from typing import Any

from accelerate.base.ports import get_free_port

PLUGIN_VARIABLES = ("ACCELERATE_USE_FSDP", "FSDP_", "ACCELERATE_USE_PARALLELISM_CONFIG", "PARALLELISM_CONFIG_")
LIMIT = 120.0  #: seconds that one call may take, including the start of the processes
GRACE = 5.0  #: seconds that the others have to answer when one rank has failed


class World:
    """`size` processes with the environment that torchrun would give them."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._processes: list[Any] = []
        self._pipes: list[Any] = []

    def run(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> list[Any]:
        """Call `function` on every rank and return what each returned.

        Raises:
            AssertionError: a rank raised (its traceback is shown), died, or did not answer in time.
        """
        if not self._processes:
            self._start()
        for pipe in self._pipes:
            pipe.send((function, args, kwargs))
        answers = self._answers()
        failed = [text for ok, text in answers if not ok]
        if failed:
            self.close()
            raise AssertionError("\n".join(failed))
        return [value for _, value in answers]

    def _answers(self) -> list[tuple[bool, Any]]:
        """Return what each rank answers; where one fails, the others, which may wait for it, get little time."""
        answers = [(False, f"rank {rank} did not answer in time") for rank in range(self.size)]
        ranks = {pipe: rank for rank, pipe in enumerate(self._pipes)}
        end = time.monotonic() + LIMIT
        while ranks and (ready := connection.wait(list(ranks), max(end - time.monotonic(), 0))):
            for pipe in ready:
                rank = ranks.pop(pipe)
                try:
                    answers[rank] = pipe.recv()
                except EOFError:
                    answers[rank] = False, f"rank {rank} died"
                if not answers[rank][0]:
                    end = min(end, time.monotonic() + GRACE)
        return answers

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")
        port = get_free_port()
        for rank in range(self.size):
            mine, theirs = context.Pipe()
            # Not a daemon, which could have no worker processes of its own; it ends with the pipe.
            process = context.Process(target=_serve, args=(rank, self.size, port, theirs))
            process.start()
            theirs.close()
            self._processes.append(process)
            self._pipes.append(mine)

    def close(self) -> None:
        """End the processes."""
        for pipe in self._pipes:
            pipe.close()
        for process in self._processes:
            process.join(timeout=5)
            if process.is_alive():
                process.kill()
                process.join()
        self._processes, self._pipes = [], []


def _serve(rank: int, size: int, port: int, pipe: Any) -> None:
    os.environ.update(
        RANK=str(rank),
        LOCAL_RANK=str(rank),
        WORLD_SIZE=str(size),
        LOCAL_WORLD_SIZE=str(size),
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(port),
        OMP_NUM_THREADS="1",
        ACCELERATE_USE_CPU="true",
    )
    import torch

    multiprocessing.set_start_method("fork", force=True)  # for workers, as in processes that are not spawned
    torch.set_num_threads(1)
    while True:
        try:
            function, args, kwargs = pipe.recv()
        except EOFError:
            os._exit(0)  # process groups may wait for each other when they end
        try:
            reset_states()
            pipe.send((True, function(*args, **kwargs)))
        except BaseException:
            pipe.send((False, f"rank {rank}:\n{traceback.format_exc()}"))


def reset_states() -> None:
    """Put this process back to before its first `Accelerator`, and take back the variables that plugins have set."""
    from accelerate.state import AcceleratorState, GradientState

    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()
    for name in [name for name in os.environ if name.startswith(PLUGIN_VARIABLES)]:
        del os.environ[name]
