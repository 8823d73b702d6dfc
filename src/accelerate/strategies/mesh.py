"""The device mesh of a run: which ranks shard together, which hold replicas."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from accelerate.comm.collectives import Alone, Collectives, TorchCollectives

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

    from accelerate.state.runtime import Runtime


def flat_mesh(runtime: Runtime) -> DeviceMesh:
    """Return the mesh of a run in which all ranks shard together."""
    from torch.distributed.device_mesh import init_device_mesh

    return init_device_mesh(
        runtime.device.torch_device.type, (runtime.topology.world_size,), mesh_dim_names=("dp_shard",)
    )


def collectives_over(mesh: DeviceMesh, runtime: Runtime) -> Collectives:
    """Return how the ranks of `mesh` that this one belongs to talk to each other."""
    if mesh.size() == 1:
        return Alone(runtime.collectives.device)
    if mesh.size() == runtime.topology.world_size:
        return runtime.collectives
    flat: Any = mesh if mesh.ndim == 1 else mesh._flatten()
    return TorchCollectives(runtime.collectives.device, flat.get_group())
