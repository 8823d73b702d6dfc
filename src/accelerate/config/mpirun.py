"""How mpirun starts the processes of a run."""

from __future__ import annotations

from dataclasses import dataclass

from accelerate.config.enums import DistributedType
from accelerate.config.kinds import Text
from accelerate.config.option import option


@dataclass
class MpirunSettings:
    """Everything that the section `mpirun_config` of a config file can hold."""

    hostfile: str | None = option(
        None,
        kind=Text(),
        flag="--mpirun_hostfile",
        yaml="mpirun_config.mpirun_hostfile",
        group="MPI Arguments",
        help="Start the processes with mpirun, on the machines that this file lists.",
        ask="Which file lists the machines for mpirun? (Empty: no mpirun.)",
        when=lambda answers: answers.get("distributed_type") == DistributedType.MULTI_CPU,
    )
