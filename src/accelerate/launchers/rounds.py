"""Several machines that start again together: every attempt is a round, in which all of them meet anew.

In torch's static rendezvous a machine that starts its processes again waits for ever for the others, which don't hear
of it, and its processes find the addresses of others that have ended. Here machines tell each other, through the store
of the main one, that a round has begun, and that one of them has ended for good; and each round has a store of its own.
"""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

BEGUN, PORT, ENDED = "begun", "port", "ended"


class Ended(Exception):
    """Another machine has ended: what it said about that, and its exit code."""

    def __init__(self, said: str, code: int) -> None:
        super().__init__(said)
        self.code = code


class Rounds:
    """What is ours in the rendezvous of several machines; stands before torch's `StaticTCPRendezvous`."""

    master_addr: str
    timeout: timedelta
    rank: int
    world_size: int
    _meeting: Any
    _served: Any = None
    _round = -1

    def next_rendezvous(self) -> Any:
        """Return where the processes of an attempt meet, and the store in which their ranks are settled."""
        from torch.distributed import PrefixStore
        from torch.distributed.elastic.rendezvous.api import RendezvousInfo, RendezvousStoreInfo

        first = super().next_rendezvous()  # type: ignore[misc]
        self._meeting, self._round = first.store, self._round + 1
        self._meeting.set(f"{BEGUN}/{self._round}", "")
        store = PrefixStore(str(self._round), self._meeting)
        place = RendezvousStoreInfo(self.master_addr, self._port()) if self._round else first.bootstrap_store_info
        return RendezvousInfo(store, self.rank, self.world_size, place)

    def _port(self) -> int:
        """Return the port of the store of this round, which the main machine opens."""
        if self.rank == 0:
            from torch.distributed import TCPStore

            self._served = TCPStore(self.master_addr, 0, 1, is_master=True, timeout=self.timeout, multi_tenant=True)
            self._meeting.set(f"{PORT}/{self._round}", str(self._served.port))
        return int(self._meeting.get(f"{PORT}/{self._round}"))

    def num_nodes_waiting(self) -> int:
        """Return whether another machine is in the next round already; torch asks several times a second.

        Raises:
            Ended: another machine has ended.
        """
        if self._meeting.check([ENDED]):
            raise Ended(**json.loads(self._meeting.get(ENDED)))
        return int(self._meeting.check([f"{BEGUN}/{self._round + 1}"]))

    def end(self, said: str, code: int) -> None:
        """Tell the other machines that this one has ended."""
        if not self._meeting.check([ENDED]):
            self._meeting.set(ENDED, json.dumps({"said": said, "code": code}))
