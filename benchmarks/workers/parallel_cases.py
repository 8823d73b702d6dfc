"""Each way to train in parallel, twice: by hand with torch's own API, and through `Accelerator`.

A `Case` builds the network, distributes it, and returns what makes one step. 1.15.0 takes part where it trains on a
CPU, which is replicas alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from parallel_network import SMALL, Block, Network, Shape, batch, build, loss_of
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.distributed.tensor.experimental import context_parallel
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.parallel import DistributedDataParallel

from accelerate import Accelerator

MICRO_BATCHES = 4
PLAN = {
    "layers.*.attention.q_proj": "colwise",
    "layers.*.attention.k_proj": "colwise",
    "layers.*.attention.v_proj": "colwise",
    "layers.*.attention.o_proj": "rowwise",
    "layers.*.gate": "colwise",
    "layers.*.up": "colwise",
    "layers.*.down": "rowwise",
}


@dataclass
class Training:
    """What is trained and how: one call of `step` is one update."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    step: Callable[[], object]


@dataclass(frozen=True)
class Case:
    """One way to train in parallel.

    Args:
        by_hand: distributes a network with torch's own API.
        settings: what `Accelerator` is told.
        readers: how many processes read different data; 0: all.
        shape: what is trained.
    """

    by_hand: Callable[[Network], nn.Module]
    settings: Callable[[], dict[str, Any]] = dict
    readers: int = 0
    shape: Shape = SMALL

    def of(self, shape: Shape) -> Case:
        """Return the same way to train another network."""
        return replace(self, shape=shape)

    def share(self) -> int:
        """Return which share of the data this process reads."""
        return dist.get_rank() * (self.readers or dist.get_world_size()) // dist.get_world_size()

    def train_by_hand(self) -> Training:
        """Return the training that one writes without a library."""
        model = self.by_hand(build(self.shape))
        optimizer = torch.optim.AdamW(model.parameters())
        inputs, labels = batch(self.shape, self.share())

        def step() -> None:
            loss_of(model(inputs), labels).backward()
            optimizer.step()
            optimizer.zero_grad()

        return Training(model, optimizer, step)

    def train_by_library(self) -> Training:
        """Return the same training with the library."""
        accelerator = Accelerator(cpu=True, **self.settings())
        model = build(self.shape)
        model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters()))
        inputs, labels = batch(self.shape, self.share())

        def step() -> None:
            self.backward(accelerator, model, inputs, labels)
            optimizer.step()
            optimizer.zero_grad()

        return Training(model, optimizer, step)

    def backward(self, accelerator: Accelerator, model: nn.Module, inputs: torch.Tensor, labels: torch.Tensor) -> None:
        """Compute the gradients of one batch with the library."""
        accelerator.backward(loss_of(model(inputs), labels))


class DividedSequences(Case):
    """Each process computes a part of every sequence. torch's ring on the CPU is neither causal nor fast."""

    def train_by_hand(self) -> Training:
        mesh = mesh_of(cp=dist.get_world_size())
        model = shard(build(self.shape), mesh)
        optimizer = torch.optim.AdamW(model.parameters())
        inputs, labels = batch(self.shape, 0)

        def step() -> None:
            parts = [inputs.clone(), labels.clone()]
            with (
                context_parallel(mesh, buffers=parts, buffer_seq_dims=[1, 1], no_restore_buffers=set(parts)),
                sdpa_kernel(SDPBackend.MATH),
            ):
                loss_of(model(parts[0]), parts[1]).backward()
            optimizer.step()
            optimizer.zero_grad()

        return Training(model, optimizer, step)

    def backward(self, accelerator: Accelerator, model: nn.Module, inputs: torch.Tensor, labels: torch.Tensor) -> None:
        parts = [inputs.clone(), labels.clone()]
        with accelerator.maybe_context_parallel(buffers=parts, buffer_seq_dims=[1, 1], no_restore_buffers=set(parts)):
            accelerator.backward(loss_of(model(parts[0]), parts[1]))


class Staged(Case):
    """Each process computes some of the layers, on all of the data."""

    def train_by_hand(self) -> Training:
        model, rank, count = build(self.shape), dist.get_rank(), dist.get_world_size()
        each = self.shape.layers // count
        model.layers = model.layers[rank * each : (rank + 1) * each]
        if rank > 0:
            model.embeddings = None
        if rank < count - 1:
            model.norm = model.head = None
        stage = PipelineStage(model, rank, count, torch.device("cpu"))
        schedule = Schedule1F1B(stage, MICRO_BATCHES, loss_fn=loss_of)
        optimizer = torch.optim.AdamW(model.parameters())
        inputs, labels = batch(self.shape, 0)
        given = ((inputs,) if rank == 0 else (), {"target": labels} if rank == count - 1 else {})

        def step() -> None:
            schedule.step(*given[0], **given[1], return_outputs=False)
            optimizer.step()
            optimizer.zero_grad()

        return Training(model, optimizer, step)

    def backward(self, accelerator: Accelerator, model: nn.Module, inputs: torch.Tensor, labels: torch.Tensor) -> None:
        accelerator.backward(model(inputs, target=labels))


def mesh_of(**axes: int) -> DeviceMesh:
    """Return a mesh of named axes."""
    return init_device_mesh("cpu", tuple(axes.values()), mesh_dim_names=tuple(axes))


def shard(model: nn.Module, mesh: DeviceMesh) -> nn.Module:
    """Shard a network block by block."""
    for block in model.layers:
        fully_shard(block, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def shard_in_first_version(model: nn.Module) -> nn.Module:
    """Wrap a network block by block."""
    return FullyShardedDataParallel(
        model, auto_wrap_policy=ModuleWrapPolicy({Block}), device_id=torch.device("cpu"), use_orig_params=False
    )


def divide(model: nn.Module, mesh: DeviceMesh) -> nn.Module:
    """Divide the layers of a network as `PLAN` says."""
    styles = {"colwise": ColwiseParallel, "rowwise": RowwiseParallel}
    return parallelize_module(model, mesh, {name: styles[style]() for name, style in PLAN.items()})


def shard_and_divide(model: nn.Module) -> nn.Module:
    """Divide the layers over two processes, and shard them over two."""
    mesh = mesh_of(dp_shard=2, tp=2)
    return shard(divide(model, mesh["tp"]), mesh["dp_shard"])


def sharded(version: int = 2, **options: Any) -> dict[str, Any]:
    """Return the settings of FSDP, with other axes if there are sizes of them."""
    from accelerate import FullyShardedDataParallelPlugin

    plugin = FullyShardedDataParallelPlugin(
        fsdp_version=version, auto_wrap_policy="TRANSFORMER_BASED_WRAP", transformer_cls_names_to_wrap=["Block"]
    )
    return {"fsdp_plugin": plugin, **(laid_out(**options) if options else {})}


def laid_out(**sizes: Any) -> dict[str, Any]:
    """Return the settings of axes."""
    from accelerate import ParallelismConfig
    from accelerate.utils import TorchTensorParallelConfig

    if "tp_size" in sizes:
        sizes["tp_handler"] = TorchTensorParallelConfig(plan=PLAN)
    return {"parallelism_config": ParallelismConfig(**sizes)}


def staged() -> dict[str, Any]:
    """Return the settings of a pipeline of two processes."""
    from accelerate.utils import PipelineParallelConfig

    handler = PipelineParallelConfig(
        schedule="1f1b", num_microbatches=MICRO_BATCHES, split_points=["layers.2"], loss=loss_of
    )
    return laid_out(pp_size=2, pp_handler=handler)


CASES = {
    "ddp": Case(DistributedDataParallel),
    "fsdp1": Case(shard_in_first_version, partial(sharded, 1)),
    "fsdp2": Case(lambda model: shard(model, mesh_of(dp=dist.get_world_size())), sharded),
    "tp": Case(
        lambda model: divide(model, mesh_of(tp=2)),
        partial(laid_out, tp_size=2),
        readers=1,
    ),
    "cp": DividedSequences(
        lambda model: model, partial(sharded, cp_size=2), readers=1, shape=replace(SMALL, causal=False, length=128)
    ),
    "pp": Staged(lambda model: model, staged, readers=1, shape=replace(SMALL, batch=8)),
    "hsdp": Case(
        lambda model: shard(model, mesh_of(dp_replicate=2, dp_shard=2)),
        partial(sharded, dp_replicate_size=2, dp_shard_size=2),
    ),
    "fsdp2_tp": Case(shard_and_divide, partial(sharded, dp_shard_size=2, tp_size=2), readers=2),
}
