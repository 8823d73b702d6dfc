"""The device mesh of a run: which ranks shard together, which hold replicas."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from accelerate.comm.collectives import Alone, Collectives, TorchCollectives

if TYPE_CHECKING:
    import torch
    from torch.distributed.device_mesh import DeviceMesh

    from accelerate.state.runtime import Runtime


def flat_mesh(runtime: Runtime) -> DeviceMesh:
    """Return the mesh of a run in which all ranks shard together."""
    from torch.distributed.device_mesh import init_device_mesh

    return init_device_mesh(
        runtime.device.torch_device.type, (runtime.topology.world_size,), mesh_dim_names=("dp_shard",)
    )


def machines_mesh(runtime: Runtime) -> DeviceMesh:
    """Return the mesh of a run in which the ranks of each machine shard together, and machines hold replicas."""
    from torch.distributed.device_mesh import init_device_mesh

    topology = runtime.topology
    shape = (topology.world_size // topology.local_world_size, topology.local_world_size)
    return init_device_mesh(runtime.device.torch_device.type, shape, mesh_dim_names=("dp_replicate", "dp_shard"))


def collectives_over(mesh: DeviceMesh, runtime: Runtime) -> Collectives:
    """Return how the ranks of `mesh` that this one belongs to talk to each other."""
    if mesh.size() == 1:
        return Alone(runtime.collectives.device)
    if mesh.size() == runtime.topology.world_size:
        return runtime.collectives
    flat: Any = mesh if mesh.ndim == 1 else mesh._flatten()
    return TorchCollectives(runtime.collectives.device, flat.get_group())


def model_has_dtensor(model: torch.nn.Module) -> bool:
    """Whether a parameter or buffer of `model` is spread over a device mesh."""
    import torch

    if not torch.distributed.is_available():
        return False
    from torch.distributed.tensor import DTensor

    return any(isinstance(tensor, DTensor) for tensor in (*model.parameters(), *model.buffers()))
