"""Whole models in turn on one device: each comes when it runs, and goes when the next one does."""

from __future__ import annotations

from typing import Any

import torch

from accelerate.comm.tree import send_to_device
from accelerate.devices.memory import clear_device_cache
from accelerate.devices.select import default_device
from accelerate.hooks.base import ModelHook, remove_hook_from_module
from accelerate.hooks.tensors import as_device


class CpuOffload(ModelHook):
    """Keep a model on the CPU until it runs, then on `execution_device` until it is offloaded.

    Args:
        execution_device: where the model runs; by default the accelerator of this process, if there is one.
        prev_module_hook: the hook of the model that runs before this one, which is offloaded when this one comes.
    """

    def __init__(
        self,
        execution_device: torch.device | str | int | None = None,
        prev_module_hook: UserCpuOffloadHook | None = None,
    ) -> None:
        self.prev_module_hook = prev_module_hook
        self.execution_device = default_device().torch_device if execution_device is None else execution_device

    @property
    def traceable(self) -> bool:
        """False: it moves weights."""
        return False

    def init_hook(self, module: torch.nn.Module) -> torch.nn.Module:
        """Move the model to the CPU."""
        return module.to("cpu")

    def pre_forward(self, module: torch.nn.Module, *args: Any, **kwargs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Offload the model before, and bring this one and its inputs to where it runs."""
        if self.prev_module_hook is not None and isinstance(self.prev_module_hook, UserCpuOffloadHook):
            self.prev_module_hook.offload()
            clear_device_cache()
        device = as_device(self.execution_device)
        module.to(device)
        return send_to_device(args, device), send_to_device(kwargs, device)


class UserCpuOffloadHook:
    """A model and its `CpuOffload` hook, for code that decides itself when the model goes.

    Args:
        model: the model.
        hook: the hook that is on it.
    """

    def __init__(self, model: torch.nn.Module, hook: ModelHook) -> None:
        self.model = model
        self.hook = hook

    def offload(self) -> None:
        """Move the model to the CPU."""
        self.hook.init_hook(self.model)

    def remove(self) -> None:
        """Take the hook off the model."""
        remove_hook_from_module(self.model)
