"""One device, whatever its kind: activate it, wait for it, seed it, and ask about its memory.

`Device` speaks the conventions of torch's device modules (`torch.cuda`, `torch.xpu`, `torch.npu`, ...), which every
backend of `torch.accelerator` follows, so it also serves backends without a row in `specs`. What deviates overrides
just that in a small file of its own.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Sequence
from typing import Any

import torch

from accelerate.base.messages import message, warn_once
from accelerate.devices.specs import DeviceSpec, spec_for

#: A random state as checkpoints keep it: one tensor per visible device, or a single one for the device of the process.
RngState = torch.Tensor | Sequence[torch.Tensor]


class Device:
    """A device of kind `spec`; complete once it is built.

    Args:
        spec: the row of its kind.
        index: which one of its kind; None is whichever is current.
    """

    def __init__(self, spec: DeviceSpec, index: int | None = None) -> None:
        self.spec = spec
        self.module: Any = self.load_module(spec)
        self.torch_device = self.resolve(index)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self.torch_device)!r})"

    @classmethod
    def load_module(cls, spec: DeviceSpec) -> Any:
        """Return the device module, such as `torch.cuda`, importing the package that brings it."""
        if spec.package is not None:
            importlib.import_module(spec.package)
        return torch.get_device_module(spec.name)

    @classmethod
    def is_present(cls, spec: DeviceSpec) -> bool:
        """Return whether this process can use such a device."""
        if not is_importable(spec):
            return False
        module = getattr(torch, spec.name, None)
        return module is not None and bool(module.is_available())

    @property
    def index(self) -> int | None:
        """The index of the device, None when it is whichever is current."""
        return self.torch_device.index

    @property
    def storage(self) -> torch.device:
        """Where its tensors are: the device to move them to, which leaves those alone that are there."""
        return self.torch_device

    def resolve(self, index: int | None) -> torch.device:
        """Return the torch device number `index`, or the one without a number."""
        return torch.device(self.spec.name) if index is None else torch.device(self.spec.name, index)

    def count(self) -> int:
        """Return how many devices of this kind the process sees."""
        return int(self.module.device_count())

    def activate(self) -> None:
        """Make this the current device of the process."""
        if self.index is not None:
            self.module.set_device(self.index)

    def check_multi_process(self) -> None:
        """Refuse hardware on which several processes can't talk to each other; nothing to refuse in general."""

    def synchronize(self) -> None:
        """Wait until everything that was queued on the device is done."""
        self.module.synchronize(*self._which())

    def empty_cache(self) -> None:
        """Give cached memory that is not in use back to the device."""
        self.module.empty_cache()

    def seed(self, seed: int) -> None:
        """Seed the generators of every visible device of this kind."""
        self.module.manual_seed_all(seed)

    def generator_state(self) -> torch.Tensor:
        """Return the random state of this one device."""
        return self.module.get_rng_state(*self._which())

    def set_generator_state(self, state: torch.Tensor) -> None:
        """Restore the random state of this one device."""
        self.module.set_rng_state(state, *self._which())

    def rng_state(self) -> RngState:
        """Return the random states of every visible device of this kind, in order."""
        return [self.module.get_rng_state(index) for index in range(self.count())]

    def set_rng_state(self, state: RngState) -> None:
        """Restore what :meth:`rng_state` returned.

        Args:
            state: one tensor per visible device, or a single tensor for this device.

        Raises:
            ValueError: there are states for another number of devices than are visible.
        """
        if isinstance(state, torch.Tensor):
            self.set_generator_state(state)
            return
        if len(state) != self.count():
            raise ValueError(_wrong_number_of_states(self, len(state)))
        for index, one in enumerate(state):
            self.module.set_rng_state(one, index)

    def free_memory(self, index: int | None = None) -> int:
        """Return how many bytes are free on device `index`, by default on this one."""
        return self.memory_info(index)[0]

    def total_memory(self, index: int | None = None) -> int:
        """Return how many bytes device `index` has, by default this one."""
        return self.memory_info(index)[1]

    def memory_info(self, index: int | None = None) -> tuple[int, int]:
        """Return the free and the total bytes of device `index`, by default of this one."""
        free, total = self.module.mem_get_info(*self._which(index))
        return int(free), int(total)

    def supports_bf16(self) -> bool:
        """Return whether the device computes in bfloat16; a backend that doesn't say is believed to."""
        asked = getattr(self.module, "is_bf16_supported", None)
        return True if asked is None else bool(asked())

    def supports_fp16(self) -> bool:
        """Return whether the device computes in float16."""
        return True

    def title(self) -> str:
        """Return the name of the model of the device, such as "NVIDIA H100 80GB HBM3"."""
        asked = getattr(self.module, "get_device_name", None)
        return self.spec.title if asked is None else str(asked(*self._which()))

    def pci_address(self) -> str | None:
        """Return the address on the PCI bus as sysfs spells it ("0000:3b:00.0"), or None when the backend hides it."""
        asked = getattr(self.module, "get_device_properties", None)
        properties: Any = None if asked is None else asked(*(self._which() or (0,)))
        if not hasattr(properties, "pci_bus_id"):
            return None
        domain = getattr(properties, "pci_domain_id", 0)
        return f"{domain:04x}:{properties.pci_bus_id:02x}:{properties.pci_device_id:02x}.0"

    def _which(self, index: int | None = None) -> tuple[int, ...]:
        """Return the positional argument that names a device to the module: none for the current one."""
        chosen = self.index if index is None else index
        return () if chosen is None else (chosen,)


def is_importable(spec: DeviceSpec) -> bool:
    """Return whether the package behind `spec` imports; a broken one is named once, and counts as absent."""
    if spec.package is None:
        return True
    if importlib.util.find_spec(spec.package.partition(".")[0]) is None:
        return False
    try:
        importlib.import_module(spec.package)
    except (ImportError, OSError, RuntimeError) as error:
        warn_once(f"{spec.title} is not used: the package {spec.package} is installed but does not import ({error}).")
        return False
    return True


def device_class(spec: DeviceSpec) -> type[Device]:
    """Return the class that serves devices of kind `spec`."""
    module, _, name = spec.implementation.partition(":")
    return getattr(importlib.import_module(module), name)


def build_device(spec: DeviceSpec, index: int | None = None) -> Device:
    """Return device number `index` of kind `spec`, or the current one of that kind."""
    return device_class(spec)(spec, index)


def device_for(device: torch.device | str | int) -> Device:
    """Return the `Device` behind a torch device such as "cuda:1"; a number counts the current accelerators."""
    found = torch.device(device)
    return build_device(spec_for(found.type), found.index)


def _wrong_number_of_states(device: Device, given: int) -> str:
    """Return the error for random states saved on another number of devices."""
    return message(
        given=f"{given} random states for devices of type {device.spec.name!r}",
        why=f"this process sees {device.count()} of them, and each device has a state of its own",
        allowed="one state per visible device, or a single tensor for the device of this process",
        do="resume with as many visible devices as when the checkpoint was written, or seed anew",
    )
