"""What every cluster environment answers: which ranks this process has, and where it meets the others."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, MutableMapping
from typing import ClassVar

from accelerate.base.messages import message
from accelerate.cluster.topology import Topology

DEFAULT_ADDRESS = "127.0.0.1"
DEFAULT_PORT = 29500


class ClusterEnvironment(ABC):
    """The surroundings of a process; they do not change while it runs.

    Args:
        environ: the variables to read; by default those of the process.
    """

    #: How messages name it.
    title: ClassVar[str]
    #: Whether the process has a process group to join, be it the only member.
    distributed: ClassVar[bool] = True
    #: Whether the processes talk through a process group of torch.distributed.
    process_group: ClassVar[bool] = True
    #: Whether the processes can talk through MPI, where torch was built with it.
    speaks_mpi: ClassVar[bool] = False

    def __init__(self, environ: Mapping[str, str] | None = None) -> None:
        self.environ = os.environ if environ is None else environ

    @classmethod
    @abstractmethod
    def detect(cls, environ: Mapping[str, str]) -> bool:
        """Return whether these are the surroundings of the process."""

    @abstractmethod
    def topology(self) -> Topology:
        """Return the ranks of this process."""

    def main_address(self) -> str:
        """Return the address at which the processes meet.

        Raises:
            ValueError: there are several machines, and nothing says which one is the first.
        """
        given = self.environ.get("MASTER_ADDR")
        if given:
            return given
        if self.topology().num_nodes > 1:
            raise ValueError(_no_main_address(self))
        return DEFAULT_ADDRESS

    def main_port(self) -> int:
        """Return the port at which the processes meet."""
        return first_integer(self.environ, ("MASTER_PORT",), DEFAULT_PORT)

    def export(self, environ: MutableMapping[str, str] | None = None) -> None:
        """Write the ranks and the meeting point under torch's names, where `env://` and other libraries look."""
        target = os.environ if environ is None else environ
        ranks = self.topology()
        target.update(
            RANK=str(ranks.rank),
            WORLD_SIZE=str(ranks.world_size),
            LOCAL_RANK=str(ranks.local_rank),
            LOCAL_WORLD_SIZE=str(ranks.local_world_size),
            MASTER_ADDR=self.main_address(),
            MASTER_PORT=str(self.main_port()),
        )


def first_integer(environ: Mapping[str, str], names: Iterable[str], default: int) -> int:
    """Return the first of the variables `names` that holds a number of at least 0, or `default`.

    Raises:
        ValueError: a variable holds something that isn't a number.
    """
    for name in names:
        text = environ.get(name)
        if text is not None:
            value = _integer(name, text)
            if value >= 0:
                return value
    return default


def checked_rank(rank: int, world_size: int) -> int:
    """Return `rank` if it is one of `world_size`; raise ValueError otherwise."""
    if not 0 <= rank < world_size:
        raise ValueError(
            message(
                given=f"rank {rank} in a world of {world_size} processes",
                why="ranks count from 0 to the number of processes less one",
                allowed=f"a rank from 0 to {world_size - 1}, or a larger WORLD_SIZE",
                do="unset RANK, LOCAL_RANK and WORLD_SIZE, or start the script through torchrun or accelerate launch",
            )
        )
    return rank


def _integer(name: str, text: str) -> int:
    """Read the number in variable `name`."""
    try:
        return int(text)
    except ValueError:
        raise ValueError(
            message(
                given=f"environment variable {name}={text!r}",
                why="it has to be a whole number",
                allowed="what torchrun, accelerate launch or mpirun set",
                do=f"unset {name}, or start the script through a launcher",
            )
        ) from None


def _no_main_address(environment: ClusterEnvironment) -> str:
    """Return the error for several machines without a meeting point."""
    return message(
        given=f"{environment.topology().num_nodes} machines, started by {environment.title}, and no MASTER_ADDR",
        why="the processes need one address at which all of them meet",
        allowed="MASTER_ADDR set to the name or address of the machine of rank 0, MASTER_PORT to a free port there",
        do="pass it on to every process, for instance `mpirun -x MASTER_ADDR=host0 -x MASTER_PORT=29500 ...`",
    )
