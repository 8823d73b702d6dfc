"""Tasks that srun has started directly: `srun python train.py`."""

from __future__ import annotations

from collections.abc import Mapping

from accelerate.base.slurm import Step
from accelerate.cluster import mpi
from accelerate.cluster.base import ClusterEnvironment, first_integer
from accelerate.cluster.topology import Topology


class Slurm(ClusterEnvironment):
    """The variables of a job step with several tasks."""

    title = "srun"

    @classmethod
    def detect(cls, environ: Mapping[str, str]) -> bool:
        """Return whether this is one task of several, rather than what mpirun has started inside of a job."""
        return Step.of(environ) is not None and not any(name in environ for name in mpi.LOCAL_RANK)

    def topology(self) -> Topology:
        """Return the ranks."""
        step = self._step()
        return Topology(
            rank=step.rank,
            world_size=step.tasks,
            local_rank=step.local_rank,
            local_world_size=step.local_tasks,
            node_rank=step.node,
            num_nodes=step.nodes,
        )

    def main_address(self) -> str:
        """Return MASTER_ADDR, or the first machine of the step."""
        return self.environ.get("MASTER_ADDR") or self._step().address

    def main_port(self) -> int:
        """Return MASTER_PORT, or one that is made of the number of the job."""
        return first_integer(self.environ, ("MASTER_PORT",), self._step().port)

    def _step(self) -> Step:
        step = Step.of(self.environ)
        assert step is not None  # `detect` has seen it
        return step
