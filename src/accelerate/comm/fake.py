"""N ranks in one process, for tests: each rank is a thread, and what they say to each other is real.

The world is stricter than a real one. Ranks that enter different collectives, or the same one with other shapes or
dtypes, all get an error that says who was where; a rank that raises or returns while others wait makes them fail at
once. Nothing hangs.
"""

from __future__ import annotations

import pickle
import threading
from collections.abc import Callable
from typing import Any, TypeVar

import torch

from accelerate.comm.collectives import Collectives, Reduction

T = TypeVar("T")


class WorldBroken(RuntimeError):
    """The ranks of a fake world can't go on together: they disagree, or one of them is gone."""


class FakeWorld:
    """A world of `world_size` ranks.

    Args:
        world_size: how many ranks.
        device: the device of all of them.
        debug: see :class:`~accelerate.comm.collectives.Collectives`.

    Example:
        >>> FakeWorld(2).run(lambda ranks: ranks.all_gather_object(ranks.rank))
        [[0, 1], [0, 1]]
    """

    def __init__(self, world_size: int, device: torch.device | str = "cpu", debug: bool = False) -> None:
        self.world_size = world_size
        self.device = device
        self.debug = debug

    def run(self, function: Callable[[Collectives], T]) -> list[T]:
        """Call `function(collectives)` on every rank at once and return the results in rank order.

        Raises:
            Exception: what the first rank to fail by itself raised; WorldBroken when the ranks disagreed.
        """
        meeting = _Meeting(self.world_size)
        results: dict[int, T] = {}

        def live(rank: int) -> None:
            try:
                results[rank] = function(FakeCollectives(meeting, rank, self.device, self.debug))
            except BaseException as error:
                meeting.fail(rank, error)
            else:
                meeting.leave(rank)

        threads = [threading.Thread(target=live, args=(rank,), daemon=True) for rank in range(self.world_size)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if meeting.culprit is not None:
            raise meeting.culprit
        return [results[rank] for rank in range(self.world_size)]


class FakeCollectives(Collectives):
    """One rank of a :class:`FakeWorld`."""

    def __init__(self, meeting: _Meeting, rank: int, device: torch.device | str, debug: bool) -> None:
        super().__init__(rank, meeting.world_size, device, debug)
        self._meeting = meeting

    def _gather_flat(self, flat: torch.Tensor) -> torch.Tensor:
        return torch.cat(self._meet("all_gather", flat))

    def _reduce(self, tensor: torch.Tensor, op: Reduction) -> None:
        stacked = torch.stack(self._meet(f"all_reduce {op}", tensor))
        if op == "sum":
            tensor.copy_(stacked.sum(0))
        else:
            tensor.copy_(stacked.amax(0) if op == "max" else stacked.amin(0))

    def _send(self, tensor: torch.Tensor, source: int) -> None:
        tensor.copy_(self._meet(f"broadcast from {source}", tensor)[source])

    def all_gather_object(self, value: Any) -> list[Any]:
        """Return copies of every rank's value, made by pickle as on a real wire."""
        return [pickle.loads(each) for each in self._meeting.meet(self.rank, "all_gather_object", pickle.dumps(value))]

    def broadcast_object(self, value: Any, source: int = 0) -> Any:
        """Return a copy of the value of rank `source`."""
        payload = pickle.dumps(value) if self.rank == source else b""
        return pickle.loads(self._meeting.meet(self.rank, f"broadcast_object from {source}", payload)[source])

    def barrier(self) -> None:
        """Return when every rank has come here."""
        self._meeting.meet(self.rank, "barrier", None)

    def _meet(self, operation: str, tensor: torch.Tensor) -> list[torch.Tensor]:
        return self._meeting.meet(self.rank, f"{operation} of {list(tensor.shape)} {tensor.dtype}", tensor.clone())


class _Meeting:
    """Where the ranks wait for each other; `culprit` is the error that broke the world, if one did."""

    def __init__(self, world_size: int) -> None:
        self.world_size = world_size
        self.culprit: BaseException | None = None
        self._changed = threading.Condition()
        self._arrived: dict[int, tuple[str, Any]] = {}
        self._left: set[int] = set()
        self._round = 0
        self._result: list[Any] = []
        self._broken: str | None = None

    def meet(self, rank: int, operation: str, payload: Any) -> list[Any]:
        """Wait until every rank has come, and return what each brought."""
        with self._changed:
            this_round = self._round
            self._arrived[rank] = (operation, payload)
            if len(self._arrived) == self.world_size:
                self._close()
            else:
                self._see_who_left()
            self._changed.wait_for(lambda: self._broken is not None or self._round != this_round)
            if self._broken is not None:
                raise WorldBroken(self._broken)
            return self._result

    def fail(self, rank: int, error: BaseException) -> None:
        """Let the others know that `rank` has raised."""
        with self._changed:
            own = not isinstance(error, WorldBroken)
            if self.culprit is None or (own and isinstance(self.culprit, WorldBroken)):
                self.culprit = error
            self._break(f"rank {rank} stopped with {type(error).__name__}: {error}")

    def leave(self, rank: int) -> None:
        """Let the others know that `rank` has returned."""
        with self._changed:
            self._left.add(rank)
            self._see_who_left()

    def _close(self) -> None:
        operations = {rank: operation for rank, (operation, _) in sorted(self._arrived.items())}
        if len(set(operations.values())) > 1:
            where = "; ".join(f"rank {rank} is in {operation}" for rank, operation in operations.items())
            self._break(f"the ranks are in different collectives: {where}")
            return
        self._result = [self._arrived[rank][1] for rank in range(self.world_size)]
        self._arrived = {}
        self._round += 1
        self._changed.notify_all()

    def _see_who_left(self) -> None:
        if self._left and self._arrived:
            waiting = "; ".join(f"rank {rank} waits in {what}" for rank, (what, _) in sorted(self._arrived.items()))
            gone = ", ".join(map(str, sorted(self._left)))
            self._break(f"rank {gone} left before the others: {waiting}")

    def _break(self, why: str) -> None:
        self._broken = self._broken or why
        self._changed.notify_all()
