"""The hook that brings a module's weights and inputs to the device where the module runs.

A resident module only has its inputs moved. An offloaded one has its weights brought in before its forward and
dropped after it; in between forwards its parameters are placeholders on meta. Several threads may run one module at a
time: the weights go when the last of them is done.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from threading import get_ident
from typing import Any

import torch

from accelerate.devices.memory import clear_device_cache
from accelerate.hooks.base import ModelHook
from accelerate.hooks.placement import TiedTensors, set_module_tensor_to_device
from accelerate.hooks.slots import Slot, find_slots, refill, vacate
from accelerate.hooks.tensors import (
    all_module_tensors,
    as_device,
    get_non_persistent_buffers,
    named_module_tensors,
)
from accelerate.hooks.transfer import device_of, to_device
from accelerate.hooks.weights import MappedWeights, SourcedWeights, weights_of


class AlignDevicesHook(ModelHook):
    """Have a module run on `execution_device`, wherever its inputs and its weights are.

    Args:
        execution_device: where the module runs; None leaves inputs where they are.
        offload: bring the weights there for the forward only.
        io_same_device: return outputs on the device where the inputs came from.
        weights_map: the weights of an offloaded module by name; by default those it has, moved to the CPU.
        offload_buffers: offload buffers too.
        place_submodules: also the weights of the modules in it, at once.
        skip_keys: names of inputs and outputs that stay where they are.
        tied_params_map: for each storage that several names share, by its address: where it is already.
    """

    def __init__(
        self,
        execution_device: torch.device | str | int | None = None,
        offload: bool = False,
        io_same_device: bool = False,
        weights_map: Mapping[str, Any] | None = None,
        offload_buffers: bool = False,
        place_submodules: bool = False,
        skip_keys: str | list[str] | None = None,
        tied_params_map: TiedTensors | None = None,
    ) -> None:
        self.execution_device = execution_device
        self.offload = offload
        self.io_same_device = io_same_device
        self.weights_map = weights_map
        self.offload_buffers = offload_buffers
        self.place_submodules = place_submodules
        self.skip_keys = skip_keys
        self.tied_params_map = tied_params_map
        #: Where the inputs of the last call came from.
        self.input_device: torch.device | None = None
        #: What this hook entered into `tied_params_map` for the forward that runs.
        self.tied_pointers_to_remove: set[tuple[int, torch.device]] = set()
        self._resolved = (execution_device, None if execution_device is None else as_device(execution_device))
        self._slots: list[Slot] = []
        self._weights: MappedWeights | SourcedWeights = MappedWeights({}, ())
        #: The weights that the places were filled with, if these are the same each time and need not be asked for.
        self._static_map: Mapping[str, Any] | None = None
        self._running: set[int] = set()
        self._turn = threading.Lock()

    @property
    def traceable(self) -> bool:
        """Whether it only moves inputs and outputs."""
        return not self.offload

    def __repr__(self) -> str:
        return (
            f"AlignDevicesHook(execution_device={self.execution_device}, offload={self.offload}, "
            f"io_same_device={self.io_same_device}, offload_buffers={self.offload_buffers}, "
            f"place_submodules={self.place_submodules}, skip_keys={self.skip_keys!r})"
        )

    def init_hook(self, module: torch.nn.Module) -> torch.nn.Module:
        """Move the module to where it runs; if it is offloaded, only its buffers, and put placeholders for the rest."""
        if self.offload:
            self._offload(module)
        elif self.execution_device is not None:
            for name, _ in named_module_tensors(module, recurse=self.place_submodules):
                self._place(module, name)
        return module

    def pre_forward(self, module: torch.nn.Module, *args: Any, **kwargs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Bring in the weights, and the inputs."""
        if self.io_same_device:
            self.input_device = device_of((args, kwargs))
        if self.offload:
            self._onload()
        given, device = self._resolved
        if self.execution_device is not given:
            device = self._device()
        if device is None:
            return args, kwargs
        if len(args) == 1 and type(args[0]) is torch.Tensor and not kwargs:  # by far the most frequent
            return args if args[0].device == device else (args[0].to(device),), kwargs
        return to_device(args, device), to_device(kwargs, device, self._skipped()) if kwargs else kwargs

    def post_forward(self, module: torch.nn.Module, output: Any) -> Any:
        """Drop the weights, and bring the output to where the inputs came from."""
        if self.offload:
            self._release()
        if self.io_same_device and self.input_device is not None:
            output = to_device(output, self.input_device, self._skipped())
        return output

    def _device(self) -> torch.device | None:
        """Return `execution_device`, which may be reassigned, as torch knows it."""
        given, device = self._resolved
        if self.execution_device is given:
            return device
        return None if self.execution_device is None else as_device(self.execution_device)

    def _skipped(self) -> Sequence[str]:
        return (self.skip_keys,) if isinstance(self.skip_keys, str) else self.skip_keys or ()

    def forward_failed(self, module: torch.nn.Module) -> None:
        """Drop the weights."""
        if self.offload:
            self._release()

    def detach_hook(self, module: torch.nn.Module) -> torch.nn.Module:
        """Give an offloaded module its weights back, where they were; what was on meta stays there."""
        if not self.offload:
            return module
        weights: Mapping[str, Any] = {} if self.weights_map is None else self.weights_map
        for name, device in self.original_devices.items():
            if device.type != "meta":
                set_module_tensor_to_device(module, name, device, value=weights.get(name))
        return module

    def names(self) -> list[str]:
        """Return the names, in the module, of the weights that are brought in."""
        return [slot.name for slot in self._slots]

    def _offload(self, module: torch.nn.Module) -> None:
        """Put placeholders in the places of an offloaded module, and its buffers on the device where it runs."""
        again = hasattr(self, "original_devices")
        tensors = dict(all_module_tensors(module, recurse=self.place_submodules))
        self.original_devices = {name: tensor.device for name, tensor in tensors.items()}
        self._slots = find_slots(module, buffers=self.offload_buffers, recurse=self.place_submodules)
        if self.weights_map is None:
            self.weights_map = {slot.name: tensors[slot.name].to("cpu") for slot in self._slots}
        elif again:
            self.weights_map = self._with_own(tensors)
        for slot in self._slots:
            slot.vacate(self.tied_params_map)
        if any(device.type not in ("cpu", "meta") for device in self.original_devices.values()):
            clear_device_cache()
        if self.execution_device is not None:
            self._place_buffers(module)

    def _with_own(self, tensors: dict[str, torch.Tensor]) -> Mapping[str, Any]:
        """Return the weights for another module than before: those that it brings go first."""
        own = {
            slot.name: tensors[slot.name].to("cpu") for slot in self._slots if tensors[slot.name].device.type != "meta"
        }
        weights: Mapping[str, Any] = {} if self.weights_map is None else self.weights_map
        return {**weights, **own} if own else weights

    def _place_buffers(self, module: torch.nn.Module) -> None:
        """Move the buffers that are not offloaded to the device where the module runs."""
        stay = get_non_persistent_buffers(module, self.place_submodules, fqns=True) if self.offload_buffers else None
        for name, _ in module.named_buffers(recurse=self.place_submodules):
            if stay is None or name in stay:
                self._place(module, name)

    def _place(self, module: torch.nn.Module, name: str) -> None:
        device: Any = self.execution_device
        set_module_tensor_to_device(module, name, device, tied_params_map=self.tied_params_map)

    def _onload(self) -> None:
        """Fill the places of the module, unless another thread has."""
        with self._turn:
            running = self._running
            first = not running
            running.add(get_ident())
            if first and not (self._static_map is self.weights_map is not None and refill(self._slots)):
                self._fill()

    def _fill(self) -> None:
        """Get the weights and put them into the places."""
        if self._weights.mapping is not self.weights_map and self.weights_map is not None:
            self._weights = weights_of(self.weights_map, tuple(slot.name for slot in self._slots))
        device = self._device()
        values = self._weights.onload(device, self.tied_params_map, self.tied_pointers_to_remove)
        keep = self._weights.keeps and (device is None or device.type == "cpu")
        for slot, value in zip(self._slots, values, strict=True):
            slot.fill(value, keep)
        self._static_map = self.weights_map if self._weights.is_static(device) else None

    def _release(self) -> None:
        """Put the placeholders back, unless another thread still runs the module."""
        with self._turn:
            self._running.discard(get_ident())
            if self._running:
                return
            vacate(self._slots)
            if self._static_map is None:
                self._weights.release(self._device())
                self._forget_tied()

    def _forget_tied(self) -> None:
        """Take out of `tied_params_map` what this hook entered."""
        for pointer, device in self.tied_pointers_to_remove:
            (self.tied_params_map or {}).get(pointer, {}).pop(device, None)
        self.tied_pointers_to_remove.clear()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_turn": None, "_running": set()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _turn=threading.Lock())
