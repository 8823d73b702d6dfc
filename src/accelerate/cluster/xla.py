"""Processes started by `torch_xla.launch` (or its older spelling, `xmp.spawn`), one per XLA device."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping

from accelerate.cluster.base import ClusterEnvironment
from accelerate.cluster.topology import Topology, topology_from


class XlaRuntime(ClusterEnvironment):
    """The PJRT runtime of torch_xla, which hands out the ordinals."""

    title = "torch_xla.launch"
    process_group = False

    @classmethod
    def detect(cls, environ: Mapping[str, str]) -> bool:
        """Return whether torch_xla has started the process."""
        return "PJRT_LOCAL_PROCESS_COUNT" in environ and importlib.util.find_spec("torch_xla") is not None

    def topology(self) -> Topology:
        """Return the ordinals as ranks: one per device, counted over all machines."""
        import torch_xla.runtime as runtime

        return topology_from(
            runtime.global_ordinal(), runtime.world_size(), runtime.local_ordinal(), runtime.local_device_count()
        )

    def main_address(self) -> str:
        """Return MASTER_ADDR, or what the runtime knows of the machine of the first worker."""
        given = self.environ.get("MASTER_ADDR")
        if given or self.topology().num_nodes == 1:
            return given or super().main_address()
        import torch_xla.runtime as runtime

        return runtime.get_master_ip()
