"""Hooks on modules: code around a forward, and the ones that move weights to where a module runs.

`base` puts hooks on modules and takes them off. `align` brings weights and inputs to a device, over the places that
`slots` finds, from the mappings in `weights`; `attach` puts that hook on the parts of a model. `offload` moves whole
models in turn, `layerwise` converts dtypes. `tensors` and `placement` are about one tensor of a module.
"""

from __future__ import annotations

from accelerate.hooks.align import AlignDevicesHook
from accelerate.hooks.attach import (
    attach_align_device_hook,
    attach_align_device_hook_on_blocks,
    attach_execution_device_hook,
)
from accelerate.hooks.base import (
    ModelHook,
    SequentialHook,
    _accelerate_added_attributes,
    add_hook_to_module,
    remove_hook_from_module,
    remove_hook_from_submodules,
)
from accelerate.hooks.layerwise import LayerwiseCastingHook
from accelerate.hooks.offload import CpuOffload, UserCpuOffloadHook

__all__ = [
    "AlignDevicesHook",
    "CpuOffload",
    "LayerwiseCastingHook",
    "ModelHook",
    "SequentialHook",
    "UserCpuOffloadHook",
    "_accelerate_added_attributes",
    "add_hook_to_module",
    "attach_align_device_hook",
    "attach_align_device_hook_on_blocks",
    "attach_execution_device_hook",
    "remove_hook_from_module",
    "remove_hook_from_submodules",
]
