"""Which of the devices that a map names there really are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from accelerate.base.messages import did_you_mean, message
from accelerate.devices.device import build_device, device_class
from accelerate.devices.select import default_device
from accelerate.devices.specs import SPECS, spec_for
from accelerate.hooks.tensors import as_device

#: Places that are always there.
ALWAYS = ("cpu", "disk", "meta")


def check_devices(device_map: Mapping[str, Any]) -> None:
    """Refuse a device map that names a device which this machine hasn't, before anything is moved.

    Raises:
        ValueError: there is no such device.
    """
    for device in dict.fromkeys(device_map.values()):
        if device not in ALWAYS:
            names = [name for name, place in device_map.items() if place == device]
            _check(device, names)


def _check(device: Any, names: list[str]) -> None:
    try:
        found = as_device(device)
    except (RuntimeError, TypeError) as error:
        known = next((spec for spec in SPECS if spec.name == str(device).partition(":")[0]), None)
        why = "torch knows no device of that name" if known is None else f"this machine has no {known.title}"
        raise ValueError(_absent(device, names, why)) from error
    if found.type in ALWAYS:
        return
    spec = spec_for(found.type)
    if not device_class(spec).is_present(spec):
        raise ValueError(_absent(device, names, f"this machine has no {spec.title}"))
    count = build_device(spec, 0).count()
    if found.index is not None and found.index >= count:
        raise ValueError(_absent(device, names, f"this machine has {count} of them, counted from 0"))


def _absent(device: Any, names: list[str], why: str) -> str:
    here = default_device()
    accelerators = [] if here.spec.name == "cpu" else [str(index) for index in range(here.count())]
    known = ["disk", *(spec.name for spec in SPECS)]
    shown = ", ".join(name or "the model" for name in names[:3]) + (", …" if len(names) > 3 else "")
    return message(
        given=f"a device_map that puts {shown} on device {device!r}",
        why=why,
        allowed=", ".join([*accelerators, "'cpu'", "'disk'"]),
        do=did_you_mean(device, known) if isinstance(device, str) and device not in known else "name another device",
    )
