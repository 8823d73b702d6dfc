"""How a model is trained, as far as memory and communication depend on it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from accelerate.base.messages import did_you_mean, message

#: Optimizers of torch: how many states as large as a parameter each keeps, whether it counts steps in a tensor for each
#: parameter, and how many copies of its states an update makes for a moment.
OPTIMIZERS: dict[str, tuple[int, bool, int]] = {
    "adamw": (2, True, 1),
    "adam": (2, True, 1),
    "rmsprop": (1, True, 1),
    "adagrad": (1, True, 1),
    "sgd": (0, False, 0),
    "sgd_momentum": (1, False, 0),
}

#: Precisions, and what each is.
PRECISIONS = {
    "fp32": "all in fp32",
    "bf16": "weights, gradients and states in fp32, computed with in bf16 (mixed_precision='bf16')",
    "pure_bf16": "all in bf16",
}

#: The schedules of pipelines that are planned for.
SCHEDULES = ("1f1b", "gpipe")

#: How ranks that share a sequence exchange keys and values: torch's ring by these two, and what a CPU does.
EXCHANGES = ("allgather", "alltoall", "cpu")


@dataclass(frozen=True)
class Training:
    """One way to train.

    Args:
        precision: see `PRECISIONS`.
        optimizer: see `OPTIMIZERS`.
        reshard_after_forward: sharded units free what they gathered after their forward pass.
        activation_checkpointing: blocks compute their activations again in the backward pass.
        batch_size: how many sequences a forward pass of one rank of data sees.
        sequence_length: how many tokens each of them has, over all ranks that share it; 0: activations are left out.
        num_microbatches: how many such passes an update has: steps of accumulation, or micro-batches of a pipeline; by
            default as many as the pipeline has stages, 1 without one.
        schedule: the order in which a pipeline works on them.
        cp_comm_strategy: how keys and values of a sequence that is shared are exchanged.

    Raises:
        ValueError: a name that is unknown, or a number below 1.
    """

    precision: str = "bf16"
    optimizer: str = "adamw"
    reshard_after_forward: bool = True
    activation_checkpointing: bool = False
    batch_size: int = 1
    sequence_length: int = 4096
    num_microbatches: int | None = None
    schedule: str = "1f1b"
    cp_comm_strategy: str = "allgather"

    def __post_init__(self) -> None:
        named: dict[str, Iterable[str]] = {
            "precision": PRECISIONS,
            "optimizer": OPTIMIZERS,
            "schedule": SCHEDULES,
            "cp_comm_strategy": EXCHANGES,
        }
        for name, choices in named.items():
            value = getattr(self, name)
            if value not in tuple(choices):
                raise ValueError(_refused(name, value, ", ".join(choices), did_you_mean(str(value), choices)))
        for name, least in (("batch_size", 1), ("sequence_length", 0), ("num_microbatches", 1)):
            value = getattr(self, name)
            if value is not None and value < least:
                raise ValueError(_refused(name, value, f"whole numbers from {least} on", "pass a greater one"))

    def passes(self, stages: int) -> int:
        """Return how many micro-batches an update has in a pipeline of so many stages; 1: without one."""
        return self.num_microbatches or stages

    @property
    def stored(self) -> int:
        """Bytes of an element of weights, gradients and states."""
        return 2 if self.precision == "pure_bf16" else 4

    @property
    def computed(self) -> int:
        """Bytes of an element of what is computed with, gathered, and reduced by FSDP."""
        return 4 if self.precision == "fp32" else 2


def _refused(name: str, value: object, allowed: str, do: str) -> str:
    return message(given=f"{name}={value!r}", why="a plan is made for one way to train", allowed=allowed, do=do)
