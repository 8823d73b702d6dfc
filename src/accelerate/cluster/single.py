"""A script started by hand, alone."""

from __future__ import annotations

from collections.abc import Mapping

from accelerate.cluster.base import ClusterEnvironment
from accelerate.cluster.topology import Topology


class SingleProcess(ClusterEnvironment):
    """No launcher at all."""

    title = "plain python"
    distributed = False
    process_group = False

    @classmethod
    def detect(cls, environ: Mapping[str, str]) -> bool:
        """Return True: a process that no launcher recognises as its own is on its own."""
        return True

    def topology(self) -> Topology:
        """Return the ranks of the only process."""
        return Topology()
