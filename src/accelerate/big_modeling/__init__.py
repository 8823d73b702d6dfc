"""Models larger than a device: build them without memory, plan where their parts go, load, offload and run them.

`meta` builds models without memory. `units`, `sizes` and `tied` say what a model consists of, `budget` what devices may
hold; `planner` divides the parts of a `tree` among them, and `device_map` makes, tidies and checks the maps.
"""

from __future__ import annotations

from accelerate.big_modeling.device_map import check_device_map
from accelerate.big_modeling.meta import init_empty_weights, init_on_device
from accelerate.hooks import attach_align_device_hook_on_blocks

__all__ = [
    "attach_align_device_hook_on_blocks",
    "check_device_map",
    "init_empty_weights",
    "init_on_device",
]
