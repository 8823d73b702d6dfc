"""Which strategy a run uses: decided once, when the `Accelerator` is built.

A strategy is a file, a line in `STRATEGIES` and, when it is chosen by itself, a line in `CHOICES`.
"""

from __future__ import annotations

from collections.abc import Callable

from accelerate.base.messages import message, warn_once
from accelerate.base.registry import Registry
from accelerate.strategies.base import Setup, Strategy
from accelerate.strategies.compile import allow_tf32

STRATEGIES: Registry[type[Strategy]] = Registry("strategies")
STRATEGIES.register("single", "accelerate.strategies.single:SingleProcess")
STRATEGIES.register("ddp", "accelerate.strategies.ddp:DataParallel")
STRATEGIES.register("staged", "accelerate.strategies.staged:Staged")
STRATEGIES.register("divided", "accelerate.strategies.divided:Divided")
STRATEGIES.register("fsdp1", "accelerate.strategies.fsdp1.strategy:FullySharded")
STRATEGIES.register("fsdp2", "accelerate.strategies.fsdp2.strategy:FullyShard")


def _shards(setup: Setup) -> bool:
    """Whether there is anything to shard over; with one process, a plugin has no effect and says so."""
    if setup.fsdp_plugin is not None and setup.runtime.topology.world_size == 1:
        warn_once("FSDP has no effect with one process: there is nobody to share parameters with.")
    return setup.fsdp_plugin is not None and setup.runtime.topology.world_size > 1


def _divides(setup: Setup) -> bool:
    """Whether models are divided. For sequences alone they are not: replicas with other tokens average gradients."""
    return setup.parallelism is not None and bool(set(setup.parallelism.non_dp_dim_names) - {"sp"})


#: Asked in order; the first that says yes is the strategy of the run.
CHOICES: tuple[tuple[str, Callable[[Setup], bool]], ...] = (
    ("staged", lambda setup: setup.parallelism is not None and setup.parallelism.pp_enabled),
    ("fsdp2", lambda setup: _shards(setup) and setup.fsdp_plugin.fsdp_version == 2),
    ("fsdp1", _shards),
    ("divided", _divides),
    ("ddp", lambda setup: setup.runtime.topology.world_size > 1),
    ("single", lambda setup: True),
)


def check_sharding(setup: Setup) -> None:
    """Refuse axes and settings of sharding that don't go together.

    Raises:
        ValueError: shards without FSDP, or FSDP without shards.
    """
    layout, shards = setup.parallelism, _shards(setup)
    if layout is None or setup.mesh is None:
        return
    over_sequences = shards and (layout.cp_enabled or layout.sp_enabled)  # FSDP shards over the ranks of this axis too
    if layout.dp_shard_enabled != shards and not over_sequences:
        raise ValueError(
            message(
                given=f"dp_shard_size={layout.dp_shard_size} {'with' if shards else 'without'} FSDP",
                why="there is nobody to shard over" if shards else "FSDP is what shards parameters",
                allowed="FSDP with dp_shard_size greater than 1, or neither",
                do="set dp_shard_size, or leave FSDP out for replicas alone"
                if shards
                else "pass fsdp_plugin=FullyShardedDataParallelPlugin(fsdp_version=2), or use dp_replicate_size",
            )
        )


def select_strategy(setup: Setup) -> Strategy:
    """Return the strategy for this run.

    Raises:
        RuntimeError: several XLA processes, whose gradients this version can't exchange.
        ValueError: see :func:`check_sharding`.
    """
    check_sharding(setup)
    name = next(name for name, wanted in CHOICES if wanted(setup))
    if name == "ddp" and setup.runtime.device.spec.name == "xla":
        raise RuntimeError(
            message(
                given=f"{setup.runtime.topology.world_size} XLA processes",
                why="training on several XLA devices needs a strategy that this version does not have",
                allowed="one XLA process, or any number of processes on another kind of device",
                do="start one process (--num_processes 1)",
            )
        )
    if setup.precision.spec.compute is None:
        allow_tf32(setup.runtime.device.torch_device, setup.dynamo)
    return STRATEGIES.get(name)(setup)
