"""How DistributedDataParallel keeps replicas equal, and how gradients are compressed on their way."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from accelerate.base.messages import message
from accelerate.config.enums import DDPCommunicationHookType
from accelerate.config.kwargs import KwargsHandler
from accelerate.config.option import Choice, Option

if TYPE_CHECKING:
    from torch.nn.parallel import DistributedDataParallel

HookType = DDPCommunicationHookType
HOOK = Option(help="How gradients are compressed.", kind=Choice.of(HookType))
WRAPPER = Option(help="In which format a hook sends.", kind=Choice(("no", "fp16", "bf16"), HookType))


@dataclass
class DistributedDataParallelKwargs(KwargsHandler):
    """Arguments of `torch.nn.parallel.DistributedDataParallel`, and its communication hook.

    Args:
        dim: the tensor dimension that is the batch.
        broadcast_buffers: send the buffers of rank 0 to the others at every forward.
        bucket_cap_mb: how many MiB of gradients are summed in one message.
        find_unused_parameters: look, at every forward, for parameters that get no gradient.
        check_reduction: obsolete in torch, without effect there.
        gradient_as_bucket_view: let gradients live inside the messages, which saves their memory.
        static_graph: promise that the same parameters take part in every step.
        comm_hook: how gradients are compressed before they are summed: a `DDPCommunicationHookType` or its value.
        comm_wrapper: send what the hook makes in fp16 or bf16.
        comm_state_option: arguments of the state of a power-SGD hook, such as `matrix_approximation_rank`.
    """

    dim: int = 0
    broadcast_buffers: bool = True
    bucket_cap_mb: int = 25
    find_unused_parameters: bool = False
    check_reduction: bool = False
    gradient_as_bucket_view: bool = False
    static_graph: bool = False
    comm_hook: DDPCommunicationHookType = DDPCommunicationHookType.NO
    comm_wrapper: DDPCommunicationHookType = DDPCommunicationHookType.NO
    comm_state_option: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.comm_hook = HOOK.read(self.comm_hook, "comm_hook")
        self.comm_wrapper = WRAPPER.read(self.comm_wrapper, "comm_wrapper")
        if self.comm_wrapper != HookType.NO and self.comm_hook == HookType.NO:
            raise _without_effect(f"comm_wrapper={self.comm_wrapper.value!r} without a comm_hook", "comm_wrapper")
        if self.comm_state_option and self.comm_hook in (HookType.FP16, HookType.BF16):
            given = f"comm_state_option={self.comm_state_option} with comm_hook={self.comm_hook.value!r}"
            raise _without_effect(given, "comm_state_option")

    def to_dict(
        self, ignore_keys: Iterable[str] = ("comm_hook", "comm_wrapper", "comm_state_option")
    ) -> dict[str, Any]:
        """Return the fields, without those that aren't arguments of the DistributedDataParallel constructor."""
        return {name: value for name, value in super().to_dict().items() if name not in ignore_keys}

    def register_comm_hook(self, model: DistributedDataParallel) -> None:
        """Give `model` the communication hook that was asked for, if one was."""
        if self.comm_hook == HookType.NO:
            return
        from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook

        hooks: dict[DDPCommunicationHookType, Callable[..., Any]] = {
            HookType.FP16: default_hooks.fp16_compress_hook,
            HookType.BF16: default_hooks.bf16_compress_hook,
            HookType.POWER_SGD: powerSGD_hook.powerSGD_hook,
            HookType.BATCHED_POWER_SGD: powerSGD_hook.batched_powerSGD_hook,
        }
        wrappers: dict[DDPCommunicationHookType, Callable[..., Any]] = {
            HookType.FP16: default_hooks.fp16_compress_wrapper,
            HookType.BF16: default_hooks.bf16_compress_wrapper,
        }
        hook = hooks[self.comm_hook]
        if self.comm_wrapper in wrappers:
            hook = wrappers[self.comm_wrapper](hook)
        model.register_comm_hook(state=self._hook_state(), hook=hook)

    def _hook_state(self) -> Any:
        """Return what the hook remembers between steps: for power-SGD its factors and errors."""
        if self.comm_hook not in (HookType.POWER_SGD, HookType.BATCHED_POWER_SGD):
            return None
        from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState

        return PowerSGDState(**{"process_group": None, **self.comm_state_option})


def _without_effect(given: str, name: str) -> ValueError:
    """Return the error for a setting of a hook that isn't there."""
    return ValueError(
        message(
            given=given,
            why=f"{name} changes what a hook does, and would be ignored",
            allowed="comm_wrapper with any comm_hook; comm_state_option with power_sgd and batched_power_sgd",
            do=f"choose such a comm_hook, or leave {name} out",
        )
    )
